"""C++ for element expressions: where each leaf is read from, and one statement per operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from cuda_agent.skills import cuda_text
from cuda_agent.skills.program import (
    Apply,
    Block,
    Expression,
    Load,
    Number,
    Shape,
    Size,
    blocks,
    count,
    product_text,
    walk,
)

Place = Literal["full", "column", "row", "uniform", "indexed"]


@dataclass(frozen=True)
class Access:
    """How a load finds its element."""

    place: Place
    """full: at the element's own position; column, row: at its column or row; uniform: one element for all; indexed: by
    `blocks` over the position."""
    blocks: tuple[Block, ...] = ()

    @property
    def vectors(self) -> bool:
        """Whether neighbouring elements read neighbouring values."""
        return self.place in ("full", "column") or (self.place == "indexed" and not self.blocks[-1].inner)


def access(leaf: Shape, shape: Shape, columns: int | None) -> Access:
    """Return how a leaf of shape `leaf` is read within a value of `shape` whose rows have `columns` elements.

    `columns` None: there are no rows, only positions.
    """
    found = blocks(leaf, shape)
    if not found:
        return Access("uniform")
    if len(found) == 1:
        block = found[0]
        inner, size = count(block.inner), count(block.size)
        if inner == 1 and block.leading:
            return Access("full")
        if columns is not None and inner == 1 and size == columns:
            return Access("column")
        if columns is not None and inner == columns and block.leading:
            return Access("row")
    return Access("indexed", tuple(Block(b.size, tuple(d for d in b.inner if d.value != 1), b.leading) for b in found))


class Names:
    """Gives C names, each once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """Return `wanted` as a C identifier that is not taken, numbered when it is."""
        base = safe(wanted)
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


_WORDS = """
auto bool break case char class const continue default delete do double else enum extern false float for if
int long namespace new operator private public register return short signed sizeof static struct switch
template this throw true typedef union unsigned using void volatile while asm inline goto try catch virtual
friend explicit typename mutable and or not xor half main kernel row rows row_start column columns position
count lane item k i a b stream thread threads blocks total start vector vectors stride rest value values
partial offset wanted small span combine index element blockIdx threadIdx gridDim blockDim warpSize load store
shuffle better reduce_row aligned launch min max abs fabs
"""
RESERVED = frozenset([*_WORDS.split(), *cuda_text.CALLS, *cuda_text.CALLS.values(), *cuda_text.DEVICE_FUNCTIONS])
"""Names that mean something else in generated CUDA."""


def safe(name: str) -> str:
    """Return `name` as a C identifier that means nothing else."""
    base = re.sub(r"\W+", "_", name).strip("_") or "value_of"
    if base[0].isdigit():
        base = f"v{base}"
    return f"{base}_value" if base in RESERVED else base


class Statements:
    """Writes the statements that compute expressions at one element or one row."""

    def __init__(self, names: Names, leaf: Callable[[Expression], str | None]) -> None:
        """`leaf` gives the text of a leaf, or of an operation that was computed before; None computes it here."""
        self._names = names
        self._leaf = leaf
        self._known: dict[int, str] = {}
        self.lines: list[str] = []
        self.functions: dict[str, None] = {}

    def text(self, expression: Expression) -> str:
        """Return C++ for the expression's value, adding the statements it needs."""
        if id(expression) in self._known:
            return self._known[id(expression)]
        given = self._leaf(expression)
        if given is None:
            given = self._compute(expression)
        self._known[id(expression)] = given
        return given

    def _compute(self, expression: Expression) -> str:
        if isinstance(expression, Number):
            return cuda_text.literal(expression.value, cuda_text.COMPUTE[expression.dtype])
        if not isinstance(expression, Apply):
            raise TypeError(f"no C++ for {type(expression).__name__} here")
        compute = cuda_text.COMPUTE[expression.dtype]
        operands = [self._converted(operand, expression) for operand in expression.operands]
        code, function = cuda_text.render(expression.op, operands, compute, expression.parameters)
        if function is not None:
            self.functions[function] = None
        name = self._names.fresh(expression.name or expression.op)
        self.lines.append(f"const {compute} {name} = {code};")
        return name

    def _converted(self, operand: Expression, parent: Apply) -> str:
        """Return an operand in the type the operation works in."""
        text = self.text(operand)
        if parent.op in ("cast", "where") and (parent.op == "cast" or operand is parent.operands[0]):
            return text
        work = _work_dtype(parent)
        if cuda_text.COMPUTE[operand.dtype] == cuda_text.COMPUTE[work]:
            return text
        if isinstance(operand, Number):
            return cuda_text.literal(operand.value, cuda_text.COMPUTE[work])
        return f"static_cast<{cuda_text.COMPUTE[work]}>({text})"


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "bfloat16", "float16", "float32", "float64")


def _work_dtype(parent: Apply) -> str:
    """Return the dtype an operation computes in: its result's, except for comparisons and tests."""
    if parent.op in (*_COMPARISONS, "isnan", "isinf"):
        return max((operand.dtype for operand in parent.operands), key=_ORDER.index)
    return parent.dtype


def size_text(size: Size, extents: Callable[[Shape], str]) -> str:
    """Return C++ for a size used as a number; `extents` names the kernel's parameter for a product of dimensions."""
    compute = cuda_text.COMPUTE[size.dtype]
    return f"static_cast<{compute}>({extents(size.dims)})"


def loads(expressions: Iterable[Expression]) -> list[Load]:
    """Return the distinct loads below expressions, in order of appearance."""
    found: dict[int, Load] = {}
    for expression in expressions:
        for item in walk(expression):
            if isinstance(item, Load):
                found.setdefault(id(item), item)
    return list(found.values())


@dataclass(frozen=True)
class Extent:
    """A launch-time number a kernel needs beside tensors: its C parameter and Python for it."""

    name: str
    python: str


class Extents:
    """Collects the sizes a launcher needs as parameters, and which of them each of its kernels uses."""

    def __init__(self, names: Names, known: dict[str, Extent] | None = None) -> None:
        self._names = names
        self._all: dict[str, Extent] = {} if known is None else known
        self._used: dict[str, Extent] = {}

    def for_kernel(self) -> Extents:
        """Return a collection for one kernel; what it uses becomes the launcher's as well."""
        return Extents(self._names, self._all)

    def parameter(self, shape: Shape, wanted: str) -> str:
        """Return C++ for the product of `shape`: a literal when it is fixed, else a parameter's name."""
        if all(not dim.text for dim in shape):
            return str(count(shape))
        text = product_text(shape)
        if text not in self._all:
            self._all[text] = Extent(self._names.fresh(wanted), text)
        self._used[text] = self._all[text]
        return self._all[text].name

    @property
    def used(self) -> list[Extent]:
        """The parameters asked for here."""
        return list(self._used.values())

    @property
    def all(self) -> list[Extent]:
        """The parameters asked for here and by all kernels."""
        return list(self._all.values())


def index_text(found: Access, position: str, extents: Extents, name: str, index_type: str) -> str:
    """Return C++ for the index of an indexed load at `position`."""
    parts = []
    strides = [found.blocks[n + 1 :] for n in range(len(found.blocks))]
    for block, after in zip(found.blocks, strides):
        text = position
        if block.inner:
            text = f"({position} / {_cast(extents.parameter(block.inner, f'{name}_inner'), index_type)})"
        if not block.leading:
            text = f"{text} % {_cast(extents.parameter(block.size, f'{name}_size'), index_type)}"
        step = tuple(dim for later in after for dim in later.size)
        if step:
            text = f"({text}) * {_cast(extents.parameter(step, f'{name}_step'), index_type)}"
        parts.append(text)
    return " + ".join(parts)


def _cast(text: str, index_type: str) -> str:
    return f"static_cast<{index_type}>({text})"
