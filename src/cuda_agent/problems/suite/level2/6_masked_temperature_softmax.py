"""Softmax of scaled scores under a mask.

Family: fused chain.
Scores, temperature, mask and softmax of an attention row.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, scores, mask):
        scaled = scores / self.temperature
        return torch.softmax(scaled.masked_fill(mask, -1e9), dim=-1)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns) * 4, torch.rand(rows, columns) > 0.7]


def get_inputs():
    return make_inputs(16384, 8192)


def get_input_variants():
    return [
        lambda: make_inputs(777, 8191),
    ]


def get_init_inputs():
    return [1.7]


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1001),
    ]
