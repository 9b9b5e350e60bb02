"""RMS norm over the last dimension, in one pass over memory."""

import torch
from cuda_extension import rms_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
        self.epsilon = 1e-6

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        rms_norm_launcher(x, self.weight, y, x.numel() // columns, columns, self.epsilon)
        return y
