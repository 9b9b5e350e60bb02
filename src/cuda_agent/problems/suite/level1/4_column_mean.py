"""Mean of each column.

Family: column reduction.
Reads everything once; neighbouring threads must take neighbouring columns.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.mean(x, dim=0)


def make_inputs(rows, columns):
    scale = torch.rand(1, columns) * 2 + 0.25
    return [torch.randn(rows, columns) * scale + torch.randn(1, columns)]


def get_inputs():
    return make_inputs(32768, 8192)


def get_input_variants():
    return [
        lambda: make_inputs(12345, 4097),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(257, 96)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(64, 131),
        lambda: make_inputs(33, 1000),
    ]
