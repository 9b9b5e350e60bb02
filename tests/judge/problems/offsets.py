"""Byte offsets of rows: 64-bit products of 32-bit sizes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, row_bytes):
        super().__init__()
        self.row_bytes = row_bytes

    def forward(self, rows):
        return rows.long() * self.row_bytes


def get_inputs():
    return [torch.randint(0, 2_000_000, (100,), dtype=torch.int32)]


def get_input_variants():
    return [lambda: [torch.randint(0, 2_000_000, (37,), dtype=torch.int32)]]


def get_init_inputs():
    return [65_536]
