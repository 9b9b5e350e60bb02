import torch
from cuda_extension import softmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_launcher(x, y, x.shape[0], x.shape[1])
        return y
