"""Scaled softmax in float16, in one pass over memory."""

import torch
from cuda_extension import half_scale_softmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        half_scale_softmax_launcher(x, y, x.numel() // columns, columns, self.scale)
        return y
