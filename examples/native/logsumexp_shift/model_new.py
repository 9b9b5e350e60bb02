"""Log-sum-exp shift and squared error of each row, in one pass over memory."""

import torch
from cuda_extension import logsumexp_shift_launcher
from torch import nn


class ModelNew(nn.Module):
    def forward(self, scores, target):
        scores, target = scores.contiguous(), target.contiguous()
        y = torch.empty(scores.shape[:-1], dtype=scores.dtype, device=scores.device)
        logsumexp_shift_launcher(scores, target, y, y.numel(), scores.shape[-1])
        return y
