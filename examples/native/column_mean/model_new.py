"""Mean of each column, at the speed of reading the matrix."""

import torch
from cuda_extension import column_mean_launcher
from torch import nn

MOST_PARTS = 64
ROWS_A_PART = 256


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        parts = max(1, min(MOST_PARTS, -(-rows // ROWS_A_PART)))
        partial = torch.empty(parts, columns, dtype=x.dtype, device=x.device)
        y = torch.empty(columns, dtype=x.dtype, device=x.device)
        column_mean_launcher(x, partial, y, parts, rows, columns)
        return y
