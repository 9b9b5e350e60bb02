"""Depthwise convolution, at the speed of reading and writing the images."""

import torch
from cuda_extension import depthwise_conv_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        # Holds the parameters; its forward is never called.
        self.conv = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        conv = self.conv
        depthwise_conv_launcher(x, conv.weight, conv.bias, y, images, channels, height, width, conv.kernel_size[0])
        return y
