"""Depthwise convolution.

Family: convolution.
One filter a channel: no sum over channels, so bound by memory.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)

    def forward(self, x):
        return self.conv(x)


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2]


def get_inputs():
    return make_inputs(64, 128, 128, 128)


def get_input_variants():
    return [
        lambda: make_inputs(17, 128, 127, 65),
    ]


def get_init_inputs():
    return [128, 3]


def get_cpu_inputs():
    return make_inputs(2, 6, 12, 14)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(1, 6, 9, 7),
    ]


def get_cpu_init_inputs():
    return [6, 3]
