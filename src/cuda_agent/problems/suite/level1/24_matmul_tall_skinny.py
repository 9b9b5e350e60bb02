"""Matrix product with a small inner size.

Family: matrix product.
Writes far more than it reads: bound by memory.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def make_inputs(m, k, n):
    return [torch.randn(m, k), torch.randn(k, n)]


def get_inputs():
    return make_inputs(16384, 32, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(12345, 32, 8191),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(256, 8, 96)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(257, 8, 97),
    ]
