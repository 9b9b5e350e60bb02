"""Running sum along each row of the values a mask keeps, in one pass over memory."""

import torch
from cuda_extension import masked_cumsum_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, mask):
        x, mask = x.contiguous(), mask.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        masked_cumsum_launcher(x, mask, y, x.numel() // columns, columns)
        return y
