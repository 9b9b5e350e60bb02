"""Causal attention with several heads.

Family: small network.
Scores, mask, softmax and a weighted sum: the scores need not reach memory.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def forward(self, x):
        batch, length, features = x.shape
        width = features // self.heads
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / width**0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, features))


def make_inputs(batch, length, features):
    return [torch.randn(batch, length, features)]


def get_inputs():
    return make_inputs(8, 1024, 1024)


def get_input_variants():
    return [
        lambda: make_inputs(3, 777, 1024),
    ]


def get_init_inputs():
    return [1024, 16]


def get_cpu_inputs():
    return make_inputs(2, 24, 32)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(1, 19, 32),
    ]


def get_cpu_init_inputs():
    return [32, 4]
