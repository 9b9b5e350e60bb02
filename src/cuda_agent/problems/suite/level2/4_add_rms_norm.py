"""Residual sum and RMS norm, in half precision.

Family: fused chain.
Returns the new residual stream and its norm: two results from one pass, in bfloat16.
"""

import torch
from torch import nn

PRECISION = "bf16"


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(columns) + 0.5).to(torch.bfloat16))
        self.epsilon = 1e-6

    def forward(self, x, residual):
        total = x + residual
        wide = total.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.epsilon)
        return (normed * self.weight.float()).to(torch.bfloat16), total


def make_inputs(rows, columns):
    x = torch.randn(rows, columns) * 2
    residual = torch.randn(rows, columns) + torch.randn(rows, 1)
    return [x.to(torch.bfloat16), residual.to(torch.bfloat16)]


def get_inputs():
    return make_inputs(32768, 8192)


def get_input_variants():
    return [
        lambda: make_inputs(777, 8192),
    ]


def get_init_inputs():
    return [8192]


def get_cpu_inputs():
    return make_inputs(16, 1000)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1000),
    ]


def get_cpu_init_inputs():
    return [1000]
