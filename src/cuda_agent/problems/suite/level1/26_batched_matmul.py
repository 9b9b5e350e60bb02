"""Batch of matrix products.

Family: matrix product.
Many products that each fill only part of the device.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def make_inputs(batch, m, k, n):
    return [torch.randn(batch, m, k), torch.randn(batch, k, n)]


def get_inputs():
    return make_inputs(128, 512, 512, 512)


def get_input_variants():
    return [
        lambda: make_inputs(65, 300, 200, 100),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(4, 32, 24, 40)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 17, 33, 9),
    ]
