import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, k):
        rows = (
            x.sum(-1),
            x.mean(-1, keepdim=True),
            (x * 0.1 + 1).prod(-1),
            x.amax(-1),
            x.amin(-1),
            x.argmax(-1),
            x.argmin(-1, keepdim=True),
            *x.max(-1),
            *x.min(-1, keepdim=True),
            (x > 2).any(-1),
            (x > -3).all(-1),
            x.var(-1),
            x.var(-1, correction=0),
            x.std(-1, keepdim=True),
            *torch.var_mean(x, -1),
            x.norm(p=1, dim=-1),
            x.norm(dim=-1),
            x.norm(p=float("inf"), dim=-1),
            x.logsumexp(-1),
            k.sum(-1),
            k.amax(-1),
            (k > 0).sum(-1),
        )
        planes = (x.sum((1, 2)), x.logsumexp((-2, -1), keepdim=True), x.flatten(1).argmax(1))
        everything = (x.sum(), x.mean(), x.amax(), x.min(), (x - 1).abs().mean(), k.sum(), x.norm(), x.var())
        return (*rows, *planes, *everything)


def get_inputs():
    return [torch.randn(3, 5, 70), torch.randint(-9, 9, (3, 5, 70))]


def get_init_inputs():
    return []
