"""RMS norm over the last dimension, written out.

Family: norm.
Four operations in eager mode, one pass over memory when fused.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)
        self.epsilon = 1e-6

    def forward(self, x):
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight


def make_inputs(rows, columns):
    # Rows of different size and offset, so that no constant and no mean of all rows passes.
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
