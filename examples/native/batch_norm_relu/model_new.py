"""Batch norm in evaluation mode, residual and ReLU, in one pass over memory."""

import torch
from cuda_extension import batch_norm_relu_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)  # holds parameters and statistics; its forward is never called

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        norm = self.norm
        batch_norm_relu_launcher(
            x,
            residual,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            y,
            images,
            channels,
            height * width,
            norm.eps,
        )
        return y
