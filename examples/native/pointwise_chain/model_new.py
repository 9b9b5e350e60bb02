"""A chain of elementwise operations in one pass over memory."""

import torch
from cuda_extension import pointwise_chain_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(columns))
        self.shift = nn.Parameter(torch.zeros(columns))

    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        columns = x.shape[-1]
        pointwise_chain_launcher(x, y, self.scale, self.shift, out, x.numel() // columns, columns)
        return out
