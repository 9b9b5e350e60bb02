import torch
from cuda_extension import layer_norm_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns, eps=1e-3)

    def forward(self, x):
        y = torch.empty_like(x)
        columns = x.shape[-1]
        norm = self.norm
        layer_norm_launcher(x, norm.weight, norm.bias, y, x.numel() // columns, columns, norm.eps)
        return y
