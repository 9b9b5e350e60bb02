"""SwiGLU gate.

Family: fused chain.
The gate of a gated MLP: SiLU of one half times the other.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gate, up):
        return torch.nn.functional.silu(gate) * up


def make_inputs(rows, columns):
    return [torch.randn(rows, columns) * 2, torch.randn(rows, columns)]


def get_inputs():
    return make_inputs(8192, 14336)


def get_input_variants():
    return [
        lambda: make_inputs(4097, 11008),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(16, 1024)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(5, 1027),
    ]
