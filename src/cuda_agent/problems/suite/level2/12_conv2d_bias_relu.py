"""Convolution, bias and ReLU.

Family: convolution with epilogue.
The clamp saves a pass over the result.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        return torch.relu(self.conv(x))


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2]


def get_inputs():
    return make_inputs(32, 64, 64, 64)


def get_input_variants():
    return [
        lambda: make_inputs(17, 64, 57, 33),
    ]


def get_init_inputs():
    return [64, 128, 3]


def get_cpu_inputs():
    return make_inputs(2, 4, 12, 14)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(1, 4, 9, 7),
    ]


def get_cpu_init_inputs():
    return [4, 6, 3]
