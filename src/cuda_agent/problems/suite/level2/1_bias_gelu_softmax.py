"""Bias, GELU and softmax over each row.

Family: fused chain.
Three passes over memory in eager mode, one when the row stays on chip.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return torch.softmax(torch.nn.functional.gelu(x + self.bias), dim=-1)


def make_inputs(rows, columns):
    # Rows of different size and offset, so that no constant and no mean of all rows passes.
    scale = torch.rand(rows, 1) * 2 + 0.25
    return [torch.randn(rows, columns) * scale + torch.randn(rows, 1)]


def get_inputs():
    return make_inputs(8192, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(777, 16384),
    ]


def get_init_inputs():
    return [16384]


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1000),
        lambda: make_inputs(1, 1000),
    ]


def get_cpu_init_inputs():
    return [1000]
