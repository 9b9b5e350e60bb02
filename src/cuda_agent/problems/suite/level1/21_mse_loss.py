"""Mean squared error.

Family: loss.
Reads two tensors and writes one number.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, prediction, target):
        return torch.nn.functional.mse_loss(prediction, target)


def make_inputs(rows, columns):
    # A scale drawn each time keeps the expected value from being a constant.
    target = torch.randn(rows, columns)
    return [target + torch.randn(rows, columns) * (torch.rand(1) + 0.2), target]


def get_inputs():
    return make_inputs(8192, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(8191, 12345),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1027),
    ]
