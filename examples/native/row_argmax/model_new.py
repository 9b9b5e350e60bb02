"""Index of the maximum of each row, at the speed of reading it."""

import torch
from cuda_extension import row_argmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
        row_argmax_launcher(x, y, y.numel(), x.shape[-1])
        return y
