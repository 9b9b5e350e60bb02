"""Gated recurrent unit over a short sequence, written out.

Family: small network.
Small products in a row with elementwise gates between them: bound by launches.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.hidden = hidden
        self.inputs = nn.Linear(features, 3 * hidden)
        self.states = nn.Linear(hidden, 3 * hidden)

    def forward(self, x, state):
        for step in range(x.shape[0]):
            reset_x, update_x, new_x = self.inputs(x[step]).chunk(3, dim=-1)
            reset_h, update_h, new_h = self.states(state).chunk(3, dim=-1)
            reset = torch.sigmoid(reset_x + reset_h)
            update = torch.sigmoid(update_x + update_h)
            fresh = torch.tanh(new_x + reset * new_h)
            state = fresh + update * (state - fresh)
        return state


def make_inputs(steps, batch, features, hidden):
    return [torch.randn(steps, batch, features), torch.randn(batch, hidden)]


def get_inputs():
    return make_inputs(16, 256, 512, 1024)


def get_input_variants():
    return [
        lambda: make_inputs(16, 100, 512, 1024),
    ]


def get_init_inputs():
    return [512, 1024]


def get_cpu_inputs():
    return make_inputs(3, 4, 12, 16)


def get_cpu_input_variants():
    return [
        lambda: make_inputs(3, 5, 12, 16),
    ]


def get_cpu_init_inputs():
    return [12, 16]
