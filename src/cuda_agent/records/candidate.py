"""A candidate: a folder of source files that claims to replace a problem's module, and its build."""

from __future__ import annotations

from typing import Literal

import msgspec

Form = Literal["native", "cuda-agent", "kernelbench"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a candidate folder."""

    id: str
    """First 16 hex digits of the SHA-256 over the sorted relative paths and contents of its files."""
    form: Form
    files: dict[str, str]
    """Relative path to text, for `model_new.py` and everything under `kernels/`."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a launcher's C signature."""

    name: str
    ctype: str
    """Canonical C type: `float*`, `__half*`, `long long`, `void*`, ... (const is dropped)."""
    const: bool
    """For pointers: whether the pointee is const, so the launcher promises not to write it."""


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """An `extern "C"` function of `kernels/*.cu` whose last parameter is a `cudaStream_t`."""

    name: str
    returns: Literal["void", "int", "cudaError_t"]
    parameters: tuple[Parameter, ...]
    """Without the trailing stream, which the binding supplies."""
    file: str
    line: int


class KernelResources(msgspec.Struct, frozen=True, kw_only=True):
    """What ptxas says of one kernel on one architecture."""

    kernel: str
    """Demangled name."""
    arch: str
    registers: int
    static_shared_bytes: int
    constant_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One compiler message, trimmed to what an author needs."""

    severity: Literal["error", "warning"]
    file: str
    line: int
    """1-based; 0 when the tool gave none."""
    message: str


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled candidate in the build cache."""

    key: str
    """Cache key: hash of sources, flags, toolkit, host compiler, architectures, Python ABI."""
    library: str
    """Absolute path of `cuda_extension` as an importable shared object."""
    target: Literal["cuda", "emulated"]
    architectures: tuple[str, ...]
    """Such as `sm_90a`; for the emulated target the PTX architecture, `compute_90a`."""
    launchers: tuple[Launcher, ...]
    resources: tuple[KernelResources, ...]
    warnings: tuple[Diagnostic, ...]
    toolkit: str
    """`nvcc 13.0.88 (wheels)`."""
    command: str
    """The nvcc command line that made it, with candidate-relative paths."""
    seconds: float
    """Wall time of the build that made this entry (not of a cache hit)."""
    cached: bool
    """True when this call found it in the cache."""
