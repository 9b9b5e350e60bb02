"""Scaled softmax in half precision.

Family: fused chain.
float16 in and out, float32 in between: half the bytes of its float32 sibling.
"""

import torch
from torch import nn

PRECISION = "fp16"


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)


def make_inputs(rows, columns):
    return [(torch.randn(rows, columns) * 3).to(torch.float16)]


def get_inputs():
    return make_inputs(16384, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(4096, 12345),
    ]


def get_init_inputs():
    return [0.5]


def get_cpu_inputs():
    return make_inputs(16, 1024)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(5, 1027),
    ]
