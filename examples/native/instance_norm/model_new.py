"""Instance norm over images, in one pass over memory."""

import torch
from cuda_extension import instance_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)  # holds the parameters; its forward is never called

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        norm = self.norm
        instance_norm_launcher(x, norm.weight, norm.bias, y, images, channels, height * width, norm.eps)
        return y
