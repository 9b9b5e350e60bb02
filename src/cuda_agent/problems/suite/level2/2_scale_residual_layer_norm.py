"""Scaled residual and layer norm.

Family: fused chain.
The sum of a residual stream and the norm that follows it, in one pass.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns) + 0.5)
        self.norm = nn.LayerNorm(columns)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_()

    def forward(self, x, residual):
        return self.norm(x * self.scale + residual)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns) * 2, torch.randn(rows, columns) + torch.randn(rows, 1)]


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
