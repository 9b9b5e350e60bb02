"""Two-layer perceptron with GELU.

Family: small network.
Two products with an activation between them.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


def make_inputs(rows, features):
    return [torch.randn(rows, features)]


def get_inputs():
    return make_inputs(4096, 1024)


def get_input_variants():
    return [
        lambda: make_inputs(1000, 1024),
    ]


def get_init_inputs():
    return [1024, 4096]


def get_cpu_inputs():
    return make_inputs(16, 48)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 48),
    ]


def get_cpu_init_inputs():
    return [48, 96]
