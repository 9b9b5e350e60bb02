"""Cross-entropy of logits and class indices, in one pass over the logits."""

import torch
from cuda_extension import cross_entropy_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        rows, classes = logits.shape
        losses = torch.empty(rows, dtype=logits.dtype, device=logits.device)
        y = torch.empty((), dtype=logits.dtype, device=logits.device)
        cross_entropy_launcher(logits, target, losses, y, rows, classes)
        return y
