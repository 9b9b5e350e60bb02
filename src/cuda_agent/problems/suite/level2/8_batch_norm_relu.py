"""Batch norm in evaluation mode, residual and ReLU.

Family: fused chain.
A scale and shift per channel, a sum and a clamp: one pass when fused.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_()
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.25, 2.0)

    def forward(self, x, residual):
        return torch.relu(self.norm(x) + residual)


def make_inputs(batch, channels, height, width):
    shape = (batch, channels, height, width)
    return [torch.randn(shape) * 2 + 0.5, torch.randn(shape)]


def get_inputs():
    return make_inputs(64, 64, 128, 128)


def get_input_variants():
    return [
        lambda: make_inputs(33, 64, 127, 65),
    ]


def get_init_inputs():
    return [64]


def get_cpu_inputs():
    return make_inputs(2, 8, 12, 10)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 8, 7, 9),
    ]


def get_cpu_init_inputs():
    return [8]
