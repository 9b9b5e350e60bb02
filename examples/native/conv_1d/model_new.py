"""Convolution along a sequence on tensor cores, at the accuracy of float32."""

import torch
from cuda_extension import conv_1d_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        # Holds the parameters; its forward is never called.
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        x = x.contiguous()
        sequences, channels, length = x.shape
        conv = self.conv
        (kernel,), (padding,) = conv.kernel_size, conv.padding
        out_length = length + 2 * padding - kernel + 1
        y = torch.empty(sequences, conv.out_channels, out_length, dtype=x.dtype, device=x.device)
        conv_1d_launcher(x, conv.weight, conv.bias, y, sequences, channels, conv.out_channels, length, kernel, padding)
        return y
