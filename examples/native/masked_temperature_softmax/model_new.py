"""Temperature, mask and softmax over each row, in one pass over memory."""

import torch
from cuda_extension import masked_softmax_launcher
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, scores, mask):
        scores, mask = scores.contiguous(), mask.contiguous()
        y = torch.empty_like(scores)
        columns = scores.shape[-1]
        masked_softmax_launcher(scores, mask, y, scores.numel() // columns, columns, self.temperature, -1e9)
        return y
