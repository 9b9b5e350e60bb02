"""Squeeze-and-excitation block.

Family: small network.
A mean over positions, two tiny products and a scale per channel.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.squeeze = nn.Linear(channels, squeezed)
        self.excite = nn.Linear(squeezed, channels)

    def forward(self, x):
        pooled = x.mean(dim=(2, 3))
        scale = torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        return x * scale[:, :, None, None]


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2 + torch.randn(batch, channels, 1, 1)]


def get_inputs():
    return make_inputs(256, 128, 56, 56)


def get_input_variants():
    return [
        lambda: make_inputs(33, 128, 55, 33),
    ]


def get_init_inputs():
    return [128, 32]


def get_cpu_inputs():
    return make_inputs(2, 8, 7, 9)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 8, 5, 5),
    ]


def get_cpu_init_inputs():
    return [8, 4]
