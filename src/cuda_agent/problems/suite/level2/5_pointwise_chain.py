"""Chain of elementwise operations.

Family: fused chain.
Five passes over memory in eager mode, one when fused.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns))
        self.shift = nn.Parameter(torch.randn(columns))

    def forward(self, x, y):
        z = torch.tanh(x * self.scale + self.shift)
        return torch.clamp(z * torch.sigmoid(y), -0.5, 0.5) + 0.1 * x


def make_inputs(rows, columns):
    return [torch.randn(rows, columns) * 2, torch.randn(rows, columns) * 2]


def get_inputs():
    return make_inputs(8192, 8192)


def get_input_variants():
    return [
        lambda: make_inputs(777, 8192),
    ]


def get_init_inputs():
    return [8192]


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1000),
    ]


def get_cpu_init_inputs():
    return [1000]
