"""Rows scaled to unit length, in one pass over memory."""

import torch
from cuda_extension import l2_normalize_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        l2_normalize_launcher(x, y, x.numel() // columns, columns, 1e-12)
        return y
