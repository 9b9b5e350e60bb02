import torch
from cuda_extension import argmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        argmax_launcher(x, y, x.shape[0], x.shape[1])
        return y
