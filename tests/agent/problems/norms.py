import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, size):
        super().__init__()
        self.plane = nn.LayerNorm((size, size), elementwise_affine=False)
        self.group = nn.GroupNorm(3, channels)
        self.instance = nn.InstanceNorm2d(channels, affine=True)
        self.bare_instance = nn.InstanceNorm2d(channels)
        self.batch = nn.BatchNorm2d(channels)
        self.rms = nn.RMSNorm(size)

    def forward(self, x):
        a = self.group(x) + self.batch(x)
        return (
            self.plane(x),
            a,
            self.instance(x),
            self.bare_instance(torch.relu(x)),
            self.rms(x),
            F.normalize(x, dim=-1),
        )


def get_inputs():
    return [torch.randn(2, 6, 10, 10) * 3 + 1]


def get_init_inputs():
    return [6, 10]
