"""Matrix product on tensor cores, at the accuracy of float32."""

import torch
from cuda_extension import matmul_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        matmul_launcher(a, b, c, m, n, k)
        return c
