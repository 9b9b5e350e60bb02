"""Square matrix product.

Family: matrix product.
At the rate of plain float32 arithmetic; tensor cores only by splitting operands.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def make_inputs(m, k, n):
    return [torch.randn(m, k), torch.randn(k, n)]


def get_inputs():
    return make_inputs(4096, 4096, 4096)


def get_input_variants():
    return [
        lambda: make_inputs(4096, 1024, 2048),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(64, 64, 64)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(65, 33, 47),
        lambda: make_inputs(16, 128, 96),
    ]
