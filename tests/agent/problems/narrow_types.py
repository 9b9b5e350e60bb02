import torch
import torch.nn.functional as F
from torch import nn

PRECISION = "fp16"


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width).half())

    def forward(self, h, b, i, f):
        a = F.softmax(h.float() * 0.5, -1).half()
        c = F.layer_norm(b, (b.shape[-1],))
        d = torch.where(f, h, self.weight)
        return a, c, d, (i + 1) * 2, h.sum(-1), i.to(torch.uint8), F.gelu(b) * b, ~f


def get_inputs():
    return [
        torch.randn(6, 40).half(),
        torch.randn(6, 40).bfloat16(),
        torch.randint(0, 100, (6, 40), dtype=torch.int32),
        torch.rand(6, 40) > 0.5,
    ]


def get_init_inputs():
    return [40]
