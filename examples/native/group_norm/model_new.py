"""Group norm, keeping most of a group on chip between its two passes."""

import torch
from cuda_extension import group_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)  # holds the parameters; its forward is never called

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        norm, groups = self.norm, self.norm.num_groups
        group_norm_launcher(x, norm.weight, norm.bias, y, images, groups, channels // groups, height * width, norm.eps)
        return y
