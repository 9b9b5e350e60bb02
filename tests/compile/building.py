"""Makes candidates from a few lines of text and loads what the compile gate built from them."""

from __future__ import annotations

from types import ModuleType

from cuda_agent.gates.compile import CompileGate
from cuda_agent.gates.workspace import candidate_of
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.worker.candidate_module import load_extension

MODEL = """
import torch
from cuda_extension import scale

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale(x, y, x.numel())
        return y
"""

SCALE = """
__global__ void scale_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
extern "C" int scale(const float* x, float* y, int n, cudaStream_t stream) {
  scale_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
  return (int)cudaGetLastError();
}
"""


def candidate(kernels: str | dict[str, str] = SCALE, *, model: str = MODEL) -> Candidate:
    """Return a candidate with one kernel file, or with those named relative to `kernels/`."""
    files = {"scale.cu": kernels} if isinstance(kernels, str) else kernels
    return candidate_of({"model_new.py": model, **{f"kernels/{name}": text for name, text in files.items()}})


def emulated(gate: CompileGate, made: Candidate) -> Build:
    """Return the build for the emulated device; a rejection fails the test with its message."""
    build = gate.build(made, target="emulated", architectures=("compute_90",))
    assert isinstance(build, Build), build
    return build


def extension(gate: CompileGate, kernels: str | dict[str, str]) -> ModuleType:
    """Return `cuda_extension` built from kernel files; the emulator must be attached."""
    return load_extension(emulated(gate, candidate(kernels)).library, emulated=True)
