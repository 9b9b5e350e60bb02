"""Mean squared error in one pass over both tensors."""

import torch
from cuda_extension import mse_loss_launcher
from torch import nn

MOST_BLOCKS = 1056  # eight for each of an H200's 132 multiprocessors
ELEMENTS_A_BLOCK = 4096


class ModelNew(nn.Module):
    def forward(self, prediction, target):
        prediction, target = prediction.contiguous(), target.contiguous()
        size = prediction.numel()
        blocks = max(1, min(MOST_BLOCKS, -(-size // ELEMENTS_A_BLOCK)))
        partial = torch.empty(blocks, dtype=prediction.dtype, device=prediction.device)
        y = torch.empty((), dtype=prediction.dtype, device=prediction.device)
        mse_loss_launcher(prediction, target, partial, y, blocks, size)
        return y
