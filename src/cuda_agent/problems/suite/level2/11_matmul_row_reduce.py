"""Linear layer, then the largest value of each row.

Family: matrix product with epilogue.
The product is only needed to be reduced; it need not reach memory.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.amax(self.linear(x), dim=-1)


def make_inputs(rows, features):
    return [torch.randn(rows, features)]


def get_inputs():
    return make_inputs(4096, 2048)


def get_input_variants():
    return [
        lambda: make_inputs(1000, 2048),
    ]


def get_init_inputs():
    return [2048, 4096]


def get_cpu_inputs():
    return make_inputs(32, 64)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(17, 64),
    ]


def get_cpu_init_inputs():
    return [64, 48]
