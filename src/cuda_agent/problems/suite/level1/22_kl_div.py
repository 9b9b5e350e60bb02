"""Kullback-Leibler divergence of two rows of probabilities.

Family: loss.
An elementwise expression and a sum over everything.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, log_prediction, target):
        return torch.nn.functional.kl_div(log_prediction, target, reduction="batchmean")


def make_inputs(rows, classes):
    log_prediction = torch.log_softmax(torch.randn(rows, classes) * 2, dim=-1)
    target = torch.softmax(torch.randn(rows, classes) * (torch.rand(1) * 2 + 0.5), dim=-1)
    return [log_prediction, target]


def get_inputs():
    return make_inputs(8192, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(8191, 12345),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(16, 500)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1001),
    ]
