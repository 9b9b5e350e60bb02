"""Bias, GELU and softmax over each row, in one pass over memory."""

import torch
from cuda_extension import bias_gelu_softmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        bias_gelu_softmax_launcher(x, self.bias, y, x.numel() // columns, columns)
        return y
