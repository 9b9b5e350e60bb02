"""GELU, exact form, at the speed of a copy."""

import torch
from cuda_extension import gelu_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        gelu_launcher(x, y, x.numel())
        return y
