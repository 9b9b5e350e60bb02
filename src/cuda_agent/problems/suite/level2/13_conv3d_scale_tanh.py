"""Convolution of volumes, scale per channel and tanh.

Family: convolution with epilogue.
A slow convolution followed by two passes that an epilogue absorbs.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.scale = nn.Parameter(torch.rand(out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        return torch.tanh(self.conv(x) * self.scale)


def make_inputs(batch, channels, depth, height, width):
    return [torch.randn(batch, channels, depth, height, width)]


def get_inputs():
    return make_inputs(8, 16, 24, 48, 48)


def get_input_variants():
    return [
        lambda: make_inputs(5, 16, 17, 33, 40),
    ]


def get_init_inputs():
    return [16, 32, 3]


def get_cpu_inputs():
    return make_inputs(1, 2, 6, 8, 7)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(2, 2, 5, 6, 9),
    ]


def get_cpu_init_inputs():
    return [2, 3, 3]
