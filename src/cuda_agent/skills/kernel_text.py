"""What every generated file has: parameters of kernels and launchers, includes, and the record of the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cuda_agent.skills import cuda_text
from cuda_agent.skills.element import Extent
from cuda_agent.skills.program import Output, Shape, Tensor


@dataclass(frozen=True)
class Generated:
    """One `.cu` file and how to call it."""

    launcher: str
    source: str
    arguments: tuple[str, ...]
    """Python texts of the launcher's arguments; outputs by the name of their variable."""
    outputs: tuple[Output, ...]
    scratch: tuple[tuple[str, str, str], ...] = ()
    """(variable, Python for its number of elements, dtype) of memory the launcher needs."""
    note: str = ""
    """One line on how the work is laid out, for a person."""


@dataclass(frozen=True)
class Tuning:
    """Launch parameters that are fixed when a kernel is generated."""

    threads: int = 128
    """Threads of a block in pointwise kernels."""
    vectors: int = 2
    """Independent 16-byte accesses of a thread in pointwise kernels."""
    elements: int = 0
    """Most elements of a row that one thread holds in registers; 0 leaves it to the generator."""
    whole: bool = True
    """Rows that fill their threads exactly get a form without checks."""
    scalar: bool = False
    """Plain accesses only; the simpler form a repair falls back to."""
    resident: bool = True
    """Rows stay in registers; otherwise they are read again for every reduction."""


def tensor_parameter(tensor: Tensor) -> str:
    """Return a launcher's C declaration of an input."""
    return f"const {cuda_text.STORAGE[tensor.dtype]}* {tensor.name}"


def kernel_tensors(tensors: Iterable[Tensor], outputs: Iterable[Output]) -> list[str]:
    """Return a kernel's C declarations of inputs and outputs; outputs are fresh memory, so nothing overlaps them."""
    return [
        *(f"const {cuda_text.STORAGE[t.dtype]}* __restrict__ {t.name}" for t in tensors),
        *(f"{cuda_text.STORAGE[o.value.dtype]}* __restrict__ {o.name}" for o in outputs),
    ]


def output_parameter(output: Output) -> str:
    """Return the C declaration of an output."""
    return f"{cuda_text.STORAGE[output.value.dtype]}* {output.name}"


def extent_parameter(extent: Extent) -> str:
    """Return the C declaration of a size."""
    return f"long long {extent.name}"


def vector_width(dtypes: Iterable[str]) -> int:
    """Return how many elements one access of up to 16 bytes moves, limited by the widest type."""
    return max(1, 16 // max(cuda_text.ITEM_BYTES[dtype] for dtype in dtypes))


def indented(lines: Iterable[str], depth: int) -> list[str]:
    """Indent lines by `depth` steps of two spaces."""
    return ["  " * depth + line if line else "" for line in lines]


def preamble(dtypes: set[str], functions: Iterable[str], *, vectors: bool) -> list[str]:
    """Return includes and the device functions that kernels over these types call."""
    parts = [*cuda_text.headers(dtypes), ""]
    if vectors:
        parts += [cuda_text.VECTOR_AND_CONVERSION.rstrip(), ""]
    for name in dict.fromkeys(functions):
        parts += [cuda_text.DEVICE_FUNCTIONS[name], ""]
    return parts


def shape_python(shape: Shape) -> str:
    """Return Python for a shape as a tuple."""
    inside = ", ".join(str(dim) for dim in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"
