"""Running sum along each row, in one pass over memory."""

import torch
from cuda_extension import cumsum_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        cumsum_launcher(x, y, x.numel() // columns, columns)
        return y
