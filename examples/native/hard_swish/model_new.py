"""Hard swish at the speed of a copy."""

import torch
from cuda_extension import hard_swish_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        hard_swish_launcher(x, y, x.numel())
        return y
