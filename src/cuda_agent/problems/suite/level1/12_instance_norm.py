"""Instance norm over images.

Family: norm.
Statistics over the positions of each channel of each image.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_()

    def forward(self, x):
        return self.norm(x)


def make_inputs(batch, channels, height, width):
    scale = torch.rand(batch, channels, 1, 1) * 2 + 0.25
    return [torch.randn(batch, channels, height, width) * scale + torch.randn(batch, channels, 1, 1)]


def get_inputs():
    return make_inputs(128, 64, 128, 128)


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
