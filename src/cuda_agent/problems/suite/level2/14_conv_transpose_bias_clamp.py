"""Transposed convolution, bias and clamp.

Family: convolution with epilogue.
Upsampling with an epilogue.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return torch.clamp(self.conv(x) + self.bias, -1.0, 1.0)


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2]


def get_inputs():
    return make_inputs(32, 64, 64, 64)


def get_input_variants():
    return [
        lambda: make_inputs(17, 64, 33, 57),
    ]


def get_init_inputs():
    return [64, 32, 4]


def get_cpu_inputs():
    return make_inputs(2, 3, 7, 6)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(1, 3, 5, 9),
    ]


def get_cpu_init_inputs():
    return [3, 4, 4]
