"""Residual block of a vision network.

Family: small network.
Two convolutions with batch norm, a skip connection and ReLU, in evaluation mode.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_()
                norm.running_mean.normal_(std=0.1)
                norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


def make_inputs(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width) * 2]


def get_inputs():
    return make_inputs(32, 64, 56, 56)


def get_input_variants():
    return [
        lambda: make_inputs(17, 64, 33, 57),
    ]


def get_init_inputs():
    return [64]


def get_cpu_inputs():
    return make_inputs(1, 4, 9, 8)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(2, 4, 7, 5),
    ]


def get_cpu_init_inputs():
    return [4]
