"""Max pooling of images, at the speed of reading them."""

import torch
from cuda_extension import max_pool_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x):
        x = x.contiguous()
        *planes, height, width = x.shape
        out_height, out_width = (
            (size + 2 * self.padding - self.kernel_size) // self.stride + 1 for size in (height, width)
        )
        y = torch.empty(*planes, out_height, out_width, dtype=x.dtype, device=x.device)
        max_pool_launcher(
            x,
            y,
            x.numel() // (height * width),
            height,
            width,
            out_height,
            out_width,
            self.kernel_size,
            self.stride,
            self.padding,
        )
        return y
