"""Cross-entropy of logits and class indices.

Family: loss.
Log-softmax of a row, one element of it, and a mean over rows.
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, logits, target):
        return torch.nn.functional.cross_entropy(logits, target)


def make_inputs(rows, classes):
    scale = torch.rand(rows, 1) * 2 + 0.25
    return [torch.randn(rows, classes) * scale, torch.randint(0, classes, (rows,))]


def get_inputs():
    return make_inputs(16384, 16384)


def get_input_variants():
    return [
        lambda: make_inputs(12345, 8191),
    ]


def get_init_inputs():
    return []


def get_cpu_inputs():
    return make_inputs(32, 500)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(7, 1001),
    ]
