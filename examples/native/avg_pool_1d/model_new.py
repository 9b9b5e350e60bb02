"""Average pooling along a sequence, at the speed of reading and writing it."""

import torch
from cuda_extension import avg_pool_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x):
        x = x.contiguous()
        *rows, length = x.shape
        out_length = (length + 2 * self.padding - self.kernel_size) // self.stride + 1
        y = torch.empty(*rows, out_length, dtype=x.dtype, device=x.device)
        avg_pool_launcher(x, y, x.numel() // length, length, out_length, self.kernel_size, self.stride, self.padding)
        return y
