"""Convolution along a sequence.

Family: convolution.
Small channel counts: bound by memory more than by arithmetic.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        return self.conv(x)


def make_inputs(batch, channels, length):
    return [torch.randn(batch, channels, length)]


def get_inputs():
    return make_inputs(32, 64, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(31, 64, 12345),
    ]


def get_init_inputs():
    return [64, 64, 5]


def get_cpu_inputs():
    return make_inputs(2, 4, 120)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 4, 97),
    ]


def get_cpu_init_inputs():
    return [4, 6, 5]
