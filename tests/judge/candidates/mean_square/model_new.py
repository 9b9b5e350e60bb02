import torch
from cuda_extension import mean_square_launcher
from torch import nn

BLOCKS = 8


class ModelNew(nn.Module):
    def forward(self, x):
        partial = torch.empty(BLOCKS, dtype=x.dtype, device=x.device)
        y = torch.empty((), dtype=x.dtype, device=x.device)
        mean_square_launcher(x, partial, y, BLOCKS, x.numel())
        return y
