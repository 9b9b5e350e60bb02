"""Convolution of images on tensor cores, at the accuracy of float32."""

import torch
from cuda_extension import conv_2d_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        # Holds the parameters; its forward is never called.
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        x = x.contiguous()
        images, channels, height, width = x.shape
        conv = self.conv
        (kernel, _), (padding, _) = conv.kernel_size, conv.padding
        grown = 2 * padding - kernel + 1
        y = torch.empty(images, conv.out_channels, height + grown, width + grown, dtype=x.dtype, device=x.device)
        conv_2d_launcher(
            x, conv.weight, conv.bias, y, images, channels, conv.out_channels, height, width, kernel, padding
        )
        return y
