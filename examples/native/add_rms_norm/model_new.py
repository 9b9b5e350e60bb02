"""Residual sum and RMS norm in bfloat16: two results from one pass over memory."""

import torch
from cuda_extension import add_rms_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns, dtype=torch.bfloat16))
        self.epsilon = 1e-6

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        normed, total = torch.empty_like(x), torch.empty_like(x)
        columns = x.shape[-1]
        add_rms_norm_launcher(x, residual, self.weight, normed, total, x.numel() // columns, columns, self.epsilon)
        return normed, total
