"""What one generated kernel computes: element expressions over loads and reductions, independent of how it is launched.

An expression belongs to a value with a shape. Its loads and reductions are leaves with shapes of their own that broadcast
to the value's, aligned at the last dimension as in torch. Rows are the leading dimensions of the values that are reduced,
columns the trailing ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

ReduceKind = Literal["sum", "max", "min", "prod", "argmax", "argmin"]


@dataclass(frozen=True)
class Dim:
    """A size: its number at the traced shapes and Python text for it at any shapes, such as `x.shape[0]`."""

    value: int
    text: str = ""

    def __str__(self) -> str:
        return self.text or str(self.value)


Shape = tuple[Dim, ...]


def count(shape: Shape) -> int:
    """Return the number of elements at the traced shapes."""
    return math.prod(dim.value for dim in shape)


def product_text(shape: Shape) -> str:
    """Return Python for the number of elements at any shapes."""
    parts = [str(dim) for dim in shape if dim.value != 1 or dim.text]
    return " * ".join(parts) or "1"


@dataclass(frozen=True)
class Tensor:
    """A tensor a kernel reads: Python for it, and what its C parameter is called."""

    python: str
    name: str
    dtype: str


@dataclass(frozen=True, eq=False)
class Load:
    """An element of a tensor."""

    tensor: Tensor
    shape: Shape

    @property
    def dtype(self) -> str:
        """torch's name of the element type."""
        return self.tensor.dtype


@dataclass(frozen=True, eq=False)
class Number:
    """A literal."""

    value: float | int | bool
    dtype: str
    shape: Shape = ()


@dataclass(frozen=True, eq=False)
class Size:
    """A size as a number to compute with, such as the divisor of a mean."""

    dims: Shape
    dtype: str
    shape: Shape = ()


@dataclass(frozen=True, eq=False)
class Column:
    """The index of the element's column."""

    dtype: str = "int64"
    shape: Shape = ()


@dataclass(frozen=True, eq=False)
class Apply:
    """A scalar operation on elements at one position."""

    op: str
    operands: tuple[Expression, ...]
    dtype: str
    parameters: tuple[float, ...] = ()
    name: str = ""
    """What a person would call the result."""
    origin: str = ""
    """The reference's operation it is part of, such as `softmax`."""


@dataclass(frozen=True, eq=False)
class Reduce:
    """A reduction of a full value over its columns, or over everything when it has no rows."""

    kind: ReduceKind
    operand: Expression
    operand_shape: Shape
    rows: Shape
    columns: Shape
    dtype: str
    shape: Shape
    """Shape of the result as a leaf: row dimensions, with or without ones behind them."""
    name: str = ""
    origin: str = ""
    """The reference's operation it is part of."""

    @property
    def key(self) -> tuple[str, int]:
        """What makes two reductions the same work: views of a result share it."""
        return self.kind, id(self.operand)


@dataclass(frozen=True, eq=False)
class At:
    """A row's value of a full expression at one column, which may differ from row to row."""

    operand: Expression
    operand_shape: Shape
    index: Expression
    """A row's value: the column."""
    rows: Shape
    columns: Shape
    dtype: str
    shape: Shape
    """Shape of the result as a leaf, as for `Reduce`."""
    origin: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What makes two of them the same work."""
        return id(self.operand), id(self.index)


Expression = Load | Number | Size | Column | Apply | Reduce | At


class Unplaceable(Exception):
    """A value can't be expressed without storing another one first; the text says why."""


@dataclass(frozen=True)
class Value:
    """An expression with its shape."""

    expression: Expression
    shape: Shape

    @property
    def dtype(self) -> str:
        """torch's name of the element type."""
        return self.expression.dtype


@dataclass(frozen=True)
class Output:
    """A tensor a kernel writes."""

    name: str
    value: Value


@dataclass(frozen=True)
class Program:
    """One kernel's work."""

    name: str
    outputs: tuple[Output, ...]

    def over_rows(self) -> Reduce | At | None:
        """Return something that says what the program's rows are; None when it has none."""
        for output in self.outputs:
            for item in walk(output.value.expression):
                if isinstance(item, Reduce | At):
                    return item
        return None

    def reductions(self) -> list[Reduce]:
        """Return all distinct reductions, each after those it depends on."""
        found: dict[tuple[str, int], Reduce] = {}
        for output in self.outputs:
            for item in walk(output.value.expression):
                if isinstance(item, Reduce):
                    found.setdefault(item.key, item)
        return list(found.values())


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and everything below it, operands first, each once."""
    seen: set[int] = set()

    def visit(item: Expression) -> Iterator[Expression]:
        if id(item) in seen:
            return
        seen.add(id(item))
        if isinstance(item, Apply):
            for operand in item.operands:
                yield from visit(operand)
        elif isinstance(item, Reduce):
            yield from visit(item.operand)
        elif isinstance(item, At):
            yield from visit(item.index)
            yield from visit(item.operand)
        yield item

    yield from visit(expression)


def reshaped(value: Value, shape: Shape) -> Value:
    """Return the same elements in row-major order under another shape.

    Raises:
        Unplaceable: a leaf is broadcast within the value in a way that the new shape can't express.
    """
    if [d.value for d in value.shape] == [d.value for d in shape]:
        return Value(value.expression, shape)
    total = count(value.shape)
    old = _without_ones(value.shape)
    only_ones_move = old == _without_ones(shape)

    def leaf(item: Load | Reduce | At) -> Expression:
        if count(item.shape) == total:
            return replace(item, shape=shape)
        if count(item.shape) == 1:
            return replace(item, shape=())
        if only_ones_move:
            return replace(item, shape=_moved(item.shape, value.shape, shape))
        raise Unplaceable("a broadcast value is viewed under another shape")

    return Value(_rewritten(value.expression, leaf), shape)


def _without_ones(shape: Shape) -> list[int]:
    return [dim.value for dim in shape if dim.value != 1]


def _moved(leaf: Shape, old: Shape, new: Shape) -> Shape:
    """Align a leaf's shape with `new`, which has the dimensions of `old` but for ones."""
    padded = (Dim(1),) * (len(old) - len(leaf)) + leaf
    kept = [own for own, dim in zip(padded, old) if dim.value != 1]
    result = []
    for dim in new:
        result.append(kept.pop(0) if dim.value != 1 else Dim(1))
    return tuple(result)


def _rewritten(expression: Expression, leaf: Callable[[Load | Reduce | At], Expression]) -> Expression:
    memo: dict[int, Expression] = {}

    def visit(item: Expression) -> Expression:
        if id(item) not in memo:
            if isinstance(item, Load | Reduce | At):
                memo[id(item)] = leaf(item)
            elif isinstance(item, Apply):
                memo[id(item)] = replace(item, operands=tuple(visit(operand) for operand in item.operands))
            else:
                memo[id(item)] = item
        return memo[id(item)]

    return visit(expression)


def broadcast(shapes: list[Shape]) -> Shape:
    """Return the shape that all broadcast to; of equal sizes one with a text wins."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = []
    for position in range(-rank, 0):
        dims = [shape[position] for shape in shapes if len(shape) >= -position]
        largest = max(dim.value for dim in dims)
        result.append(
            next((d for d in dims if d.value == largest and d.text), next(d for d in dims if d.value == largest))
        )
    return tuple(result)


@dataclass(frozen=True)
class Block:
    """A run of dimensions in which a leaf varies: index = (position / inner) % size."""

    size: Shape
    inner: Shape
    leading: bool
    """Nothing stands before it, so the remainder is not needed."""


def blocks(leaf: Shape, shape: Shape) -> list[Block]:
    """Return the runs of dimensions of `shape` in which a leaf of shape `leaf` varies."""
    padded = (Dim(1),) * (len(shape) - len(leaf)) + leaf
    found: list[Block] = []
    start: int | None = None
    for index in range(len(shape) + 1):
        varies = index < len(shape) and padded[index].value == shape[index].value and shape[index].value != 1
        ends = index == len(shape) or (not varies and shape[index].value != 1)
        if varies and start is None:
            start = index
        elif ends and start is not None:
            before = [dim for dim in shape[:start] if dim.value != 1]
            found.append(Block(shape[start:index], shape[index:], not before))
            start = None
    return found
