import torch
from cuda_extension import silu_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.results = {}

    def forward(self, x):
        y = torch.empty_like(x)
        silu_launcher(x, y, x.numel())
        return y
