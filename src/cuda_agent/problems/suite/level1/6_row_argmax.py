"""Index of the maximum of each row.

Family: arg-reduction.
A reduction over pairs of value and index; the first of equal values wins.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.argmax(x, dim=-1)


def make_inputs(rows, columns):
    # Rows of different size and offset, so that no constant and no mean of all rows passes.
    scale = torch.rand(rows, 1) * 2 + 0.25
    return [torch.randn(rows, columns) * scale + torch.randn(rows, 1)]


def get_inputs():
    return make_inputs(16384, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(4096, 12345),
        lambda: make_inputs(16384, 4100),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(16, 1024)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(5, 1027),
        lambda: make_inputs(33, 130),
        lambda: make_inputs(1, 4099),
    ]
