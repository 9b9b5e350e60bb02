"""Matrix times vector, at the speed of reading the matrix."""

import torch
from cuda_extension import matvec_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, matrix, vector):
        matrix, vector = matrix.contiguous(), vector.contiguous()
        rows, columns = matrix.shape
        y = torch.empty(rows, dtype=matrix.dtype, device=matrix.device)
        matvec_launcher(matrix, vector, y, rows, columns)
        return y
