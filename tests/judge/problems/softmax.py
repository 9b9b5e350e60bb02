"""Softmax over rows of several lengths."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(5, 300) * 3]


def get_input_variants():
    return [lambda: [torch.randn(2, 129) * 3], lambda: [torch.randn(4, 31) * 3]]


def get_init_inputs():
    return []
