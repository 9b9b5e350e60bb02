"""Matrix product with the second operand stored by rows.

Family: matrix product.
Both operands are read along their inner dimension.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b.T)


def make_inputs(m, k, n):
    return [torch.randn(m, k), torch.randn(n, k)]


def get_inputs():
    return make_inputs(4096, 4096, 2048)


def get_input_variants():
    return [
        lambda: make_inputs(4000, 1000, 2000),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(48, 64, 56)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(33, 65, 47),
    ]
