"""Running sum along each row.

Family: scan.
A scan: each output depends on all inputs before it.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=-1)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns)]


def get_inputs():
    return make_inputs(8192, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(4096, 12345),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(8, 1024)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 1027),
    ]
