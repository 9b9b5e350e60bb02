"""SiLU of one tensor times another, in one pass."""

import torch
from cuda_extension import swiglu_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        swiglu_launcher(gate, up, y, gate.numel())
        return y
