"""Average pooling along a sequence.

Family: pooling.
A short moving average; neighbouring windows share their inputs.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.pool = nn.AvgPool1d(kernel_size, stride=stride, padding=padding)

    def forward(self, x):
        return self.pool(x)


def make_inputs(batch, channels, length):
    return [torch.randn(batch, channels, length) * 2 + 0.5]


def get_inputs():
    return make_inputs(64, 128, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(63, 128, 12345),
    ]


def get_init_inputs():
    return [8, 1, 4]


def get_cpu_inputs():
    return make_inputs(2, 4, 200)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 5, 131),
    ]
