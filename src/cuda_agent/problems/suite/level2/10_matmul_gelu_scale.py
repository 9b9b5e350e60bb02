"""Linear layer, GELU and a scale per column.

Family: matrix product with epilogue.
In half precision on tensor cores, where the epilogue weighs more.
"""

import torch
from torch import nn

PRECISION = "bf16"


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features).to(torch.bfloat16)
        self.scale = nn.Parameter((torch.rand(out_features) + 0.5).to(torch.bfloat16))

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x), approximate="tanh") * self.scale


def make_inputs(rows, features):
    return [torch.randn(rows, features).to(torch.bfloat16)]


def get_inputs():
    return make_inputs(8192, 4096)


def get_input_variants():
    return [
        lambda: make_inputs(1000, 4096),
    ]


def get_init_inputs():
    return [4096, 8192]


def get_cpu_inputs():
    return make_inputs(32, 64)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(17, 64),
    ]


def get_cpu_init_inputs():
    return [64, 48]
