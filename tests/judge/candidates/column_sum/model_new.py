import torch
from cuda_extension import column_sum_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty(columns, dtype=x.dtype, device=x.device)
        column_sum_launcher(x, y, rows, columns)
        return y
