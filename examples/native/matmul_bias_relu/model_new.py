"""Linear layer and ReLU in one kernel on tensor cores, at the accuracy of float32."""

import torch
from cuda_extension import matmul_bias_relu_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)  # holds the parameters; its forward is never called

    def forward(self, x):
        x = x.contiguous()
        linear = self.linear
        y = torch.empty(*x.shape[:-1], linear.out_features, dtype=x.dtype, device=x.device)
        rows = x.numel() // linear.in_features
        matmul_bias_relu_launcher(x, linear.weight, linear.bias, y, rows, linear.out_features, linear.in_features)
        return y
