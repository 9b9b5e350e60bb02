"""Mean of the squares of all elements: one number from many blocks."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.pow(2).mean()


def get_inputs():
    return [torch.randn(20, 100) * (torch.rand(1) + 0.5)]


def get_input_variants():
    return [lambda: [torch.randn(7, 101) * (torch.rand(1) + 0.5)]]


def get_init_inputs():
    return []
