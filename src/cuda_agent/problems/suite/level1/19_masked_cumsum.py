"""Running sum along each row of the values a mask keeps.

Family: scan.
A product before a scan: one pass when fused.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=-1)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns), torch.rand(rows, columns) > 0.5]


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
