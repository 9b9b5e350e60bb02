"""Convolution of volumes.

Family: convolution.
Far over the memory floor in eager mode.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return self.conv(x)


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
