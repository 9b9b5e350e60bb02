import torch
from cuda_extension import offsets_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, row_bytes):
        super().__init__()
        self.row_bytes = row_bytes

    def forward(self, rows):
        y = torch.empty(rows.shape, dtype=torch.int64, device=rows.device)
        offsets_launcher(rows, y, rows.numel(), self.row_bytes)
        return y
