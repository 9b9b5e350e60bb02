import torch
from torch import nn


class Model(nn.Module):
    """A view to a size that is fixed, and only happens to be the number of rows as well."""

    def forward(self, x):
        return x.view(-1, 16).softmax(-1), x.reshape(x.shape[0], 4, 16).sum((1, 2), keepdim=True)


def get_inputs():
    return [torch.randn(16, 64)]


def get_input_variants():
    return [[torch.randn(5, 64)], [torch.randn(33, 64)]]


def get_init_inputs():
    return []
