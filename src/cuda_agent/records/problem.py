"""A problem: a PyTorch module with its inputs, as text, and what a worker found out about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem file, by its text; nothing in it has been run yet."""

    id: str
    """First 16 hex digits of the SHA-256 of the normalised source (comments and docstrings don't count)."""
    name: str
    """Name for people, such as `level1/row_softmax`."""
    source: str
    """The Python text with `Model`, `get_inputs` and `get_init_inputs`."""
    origin: str
    """Where it came from: a path, `builtin`, or data set and row."""
    level: int | None = None
    """KernelBench-style level, None where the origin has none."""


class BrokenProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file or row that is meant to be a problem and can't be used as one."""

    name: str
    origin: str
    level: int | None = None
    reason: str
    """One paragraph: what is wrong, what to do."""


class ValueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output value: a tensor's shape and dtype, or the repr of a plain Python value."""

    kind: Literal["tensor", "value"]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    """torch's name without the prefix, `float32`; the Python type's name for a plain value."""
    text: str = ""
    """The repr of a plain value; empty for tensors."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One set of shapes on which a problem is judged."""

    name: str
    """`default`, `variant 1`, ...; unique within a device class."""
    origin: Literal["declared", "derived"]
    """Whether the problem file declares it or it was made by shrinking (`docs/problem-format.md`)."""
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Relative and absolute bound of `|candidate - oracle| <= atol + rtol * |oracle|`."""

    rtol: float
    atol: float


class ProblemDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the inspecting worker saw when it loaded and ran a problem once on CPU shapes."""

    precision: Precision
    tolerance: Tolerance | None
    """The problem's own `TOLERANCE`, None where it declares none."""
    cpu_cases: tuple[Case, ...]
    """Cases for the emulated device; the first is the default."""
    gpu_cases: tuple[Case, ...]
    """Cases for a CUDA device, found on meta tensors; `outputs` may be empty where that is impossible."""
    fixed_shape: bool
    """True when there is one case only; a candidate may then specialise on it."""
    init_inputs: tuple[ValueSpec, ...]
    parameter_count: int
    """Elements in `state_dict()` at CPU shapes."""
    training: bool
    """True when the problem asks for train mode; eval otherwise."""
    cpu_source: str = ""
    """The problem's text with smaller sizes, where the CPU shapes are derived; empty where they are declared or
    the problem is small as it is."""


class InspectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request.json` of an inspect worker."""

    source: str
    gpu: bool
    """Whether the cases for a GPU are wanted as well."""


class InspectReply(msgspec.Struct, frozen=True, kw_only=True):
    """`result.json` of an inspect worker: a description, or what is wrong with the problem."""

    description: ProblemDescription | None = None
    problem: str = ""
    """One paragraph; empty when the problem is usable."""
