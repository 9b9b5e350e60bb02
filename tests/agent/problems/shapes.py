import torch
from torch import nn


class Model(nn.Module):
    """Broadcasts of every kind, views, variants with odd sizes and an input that is not contiguous."""

    def __init__(self, channels, slope=0.1):
        super().__init__()
        self.slope = slope
        self.register_buffer("shift", torch.arange(channels, dtype=torch.float32))
        self.gain = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x, row, column, scale=2.0):
        y = x * self.gain + self.shift.view(1, -1, 1, 1)
        z = torch.where(y > 0, y, y * self.slope) + row[:, None, None] - column.unsqueeze(-1)
        return (
            z,
            z.flatten(1).sum(1),
            z.squeeze().reshape(-1) * scale,
            x.reshape(x.shape[0], -1).mean(1, keepdim=True) + x.mean(),
        )


def get_inputs():
    return [torch.randn(2, 3, 4, 8), torch.randn(4)[:, None].expand(4, 8)[:, 0][:1].expand(1), torch.randn(4)]


def get_input_variants():
    return [
        [torch.randn(5, 3, 7, 9), torch.randn(1), torch.randn(7)],
        [torch.randn(3, 3, 8, 2).transpose(2, 3), torch.randn(1), torch.randn(2)],
    ]


def get_init_inputs():
    return [3]
