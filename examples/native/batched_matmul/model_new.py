"""Batch of matrix products on tensor cores, at the accuracy of float32."""

import torch
from cuda_extension import batched_matmul_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (batch, m, k), n = a.shape, b.shape[2]
        c = torch.empty(batch, m, n, dtype=a.dtype, device=a.device)
        batched_matmul_launcher(a, b, c, batch, m, n, k)
        return c
