"""Layer norm of short rows, where one element more or less in a divisor shows."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns, eps=1e-3)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(6, 70) * (torch.rand(6, 1) + 0.1) + torch.randn(6, 1)]


def get_input_variants():
    return [lambda: [torch.randn(2, 3, 70) + torch.randn(2, 3, 1)]]


def get_init_inputs():
    return [70]
