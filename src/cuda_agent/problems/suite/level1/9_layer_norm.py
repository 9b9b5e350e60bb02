"""Layer norm over the last dimension.

Family: norm.
Mean and variance of a row that fits on chip, then scale and shift.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_()

    def forward(self, x):
        return self.norm(x)


def make_inputs(rows, columns):
    scale = torch.rand(rows, 1) * 2 + 0.25
    return [torch.randn(rows, columns) * scale + torch.randn(rows, 1)]


def get_inputs():
    return make_inputs(16384, 8192)


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
