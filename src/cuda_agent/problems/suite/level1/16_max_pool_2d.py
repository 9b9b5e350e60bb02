"""Max pooling with overlapping windows.

Family: pooling.
Each input is read by up to four windows; a kernel that keeps them on chip reads it once.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size, stride=stride, padding=padding)

    def forward(self, x):
        return self.pool(x)


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2]


def get_inputs():
    return make_inputs(64, 64, 256, 256)


def get_input_variants():
    return [
        lambda: make_inputs(17, 64, 255, 129),
    ]


def get_init_inputs():
    return [3, 2, 1]


def get_cpu_inputs():
    return make_inputs(2, 4, 16, 14)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(1, 3, 17, 9),
    ]
