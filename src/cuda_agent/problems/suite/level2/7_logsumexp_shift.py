"""Scores minus their log-sum-exp, then squared error to a target.

Family: fused chain.
Two reductions over a row and a chain around them; one number a row remains.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, scores, target):
        normalised = scores - torch.logsumexp(scores, dim=-1, keepdim=True)
        return (normalised - target).pow(2).sum(dim=-1)


def make_inputs(rows, columns):
    return [torch.randn(rows, columns) * 3, torch.randn(rows, columns)]


def get_inputs():
    return make_inputs(8192, 8192)


def get_input_variants():
    return [
        lambda: make_inputs(777, 8191),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1001),
    ]
