"""Matrix times vector.

Family: matrix product.
Reads the matrix once: a copy of half the size is the bound.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, matrix, vector):
        return torch.mv(matrix, vector)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns), torch.randn(columns)]


def get_inputs():
    return make_inputs(16384, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(12345, 16381),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(64, 512)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(33, 515),
    ]
