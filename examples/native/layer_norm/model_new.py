"""Layer norm over the last dimension, in one pass over memory."""

import torch
from cuda_extension import layer_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)  # holds the parameters; its forward is never called

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        norm = self.norm
        layer_norm_launcher(x, norm.weight, norm.bias, y, x.numel() // columns, columns, norm.eps)
        return y
