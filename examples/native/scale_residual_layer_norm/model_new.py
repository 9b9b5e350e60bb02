"""Scaled residual and layer norm, in one pass over memory."""

import torch
from cuda_extension import scale_residual_layer_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(columns))
        self.norm = nn.LayerNorm(columns)  # holds the parameters; its forward is never called

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        norm = self.norm
        scale_residual_layer_norm_launcher(
            x, residual, self.scale, norm.weight, norm.bias, y, x.numel() // columns, columns, norm.eps
        )
        return y
