"""Kullback-Leibler divergence, averaged over the batch, in one pass over both tensors."""

import torch
from cuda_extension import kl_div_launcher
from torch import nn

MOST_BLOCKS = 1056  # eight for each of an H200's 132 multiprocessors
ELEMENTS_A_BLOCK = 4096


class ModelNew(nn.Module):
    def forward(self, log_prediction, target):
        log_prediction, target = log_prediction.contiguous(), target.contiguous()
        size = log_prediction.numel()
        blocks = max(1, min(MOST_BLOCKS, -(-size // ELEMENTS_A_BLOCK)))
        partial = torch.empty(blocks, dtype=log_prediction.dtype, device=log_prediction.device)
        y = torch.empty((), dtype=log_prediction.dtype, device=log_prediction.device)
        kl_div_launcher(log_prediction, target, partial, y, blocks, size, log_prediction.shape[0])
        return y
