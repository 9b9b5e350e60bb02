"""Transformer block before its attention: norm, gated MLP and residual.

Family: small network.
RMS norm, three products, a gate and a sum.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.weight
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed))


def make_inputs(rows, features):
    return [torch.randn(rows, features)]


def get_inputs():
    return make_inputs(4096, 1024)


def get_input_variants():
    return [
        lambda: make_inputs(1000, 1024),
    ]


def get_init_inputs():
    return [1024, 2816]


def get_cpu_inputs():
    return make_inputs(16, 48)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 48),
    ]


def get_cpu_init_inputs():
    return [48, 96]
