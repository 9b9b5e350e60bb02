"""Runs commands as a user does, and the problem and candidate that the tests make faults in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from cuda_agent.cli.app import app

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""

MODEL = """
import torch
from cuda_extension import twice_launcher

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        twice_launcher(x, y, x.numel())
        return y
"""

KERNEL = """
#include <cuda_runtime.h>
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" void twice_launcher(const float* x, float* y, int n, cudaStream_t stream) {
    twice<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
"""


class Ran(NamedTuple):
    """What a command did."""

    code: int
    result: dict[str, Any]
    """The one JSON object on standard output."""
    said: str
    """Standard error."""

    @property
    def message(self) -> str:
        """What the command says went wrong."""
        text: str = (self.result.get("error") or self.result["verdict"])["message"]
        return text


def run(*arguments: object) -> Ran:
    """Run a command with `--json`; standard output must be one JSON object and nothing else."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    return Ran(result.exit_code, json.loads(result.stdout), result.stderr)


def write_problem(folder: Path, text: str = PROBLEM, name: str = "asked.py") -> Path:
    """Write a problem file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def write_candidate(folder: Path, *, model: str = MODEL, kernel: str = KERNEL) -> Path:
    """Write a candidate folder and return its path."""
    (folder / "kernels").mkdir(parents=True)
    (folder / "model_new.py").write_text(model)
    (folder / "kernels" / "twice.cu").write_text(kernel)
    return folder
