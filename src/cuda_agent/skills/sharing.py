"""Makes equal expressions of a program one object, so that a kernel reads and computes each of them once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from cuda_agent.skills.element import Access, access
from cuda_agent.skills.program import (
    At,
    Column,
    Expression,
    Load,
    Number,
    Output,
    Program,
    Reduce,
    Shape,
    Size,
    Unplaceable,
    Value,
    count,
    product_text,
)


def resolved(program: Program, *, rows: int | None, columns: int | None) -> tuple[Program, dict[int, Access]]:
    """Return the program with equal expressions shared, and how each of its loads is read, by the load's `id`.

    Two loads of one tensor are equal when they read the same element at every position, whatever shape they are
    seen under. `rows` and `columns` are None for kernels without rows.

    Raises:
        Unplaceable: a tensor is broadcast over rows in a way that no row kernel reads.
    """
    sharing = _Sharing(rows, columns)
    outputs = tuple(
        Output(output.name, Value(sharing.of(output.value.expression, output.value.shape), output.value.shape))
        for output in program.outputs
    )
    return Program(program.name, outputs), sharing.ways


class _Sharing:
    def __init__(self, rows: int | None, columns: int | None) -> None:
        self._rows = rows
        self._columns = columns
        self._known: dict[Hashable, Expression] = {}
        self._done: dict[tuple[int, Shape], Expression] = {}
        self._kept: list[Expression] = []
        self.ways: dict[int, Access] = {}

    def of(self, item: Expression, shape: Shape) -> Expression:
        """Return the one expression that stands for `item` within a value of `shape`."""
        memo = (id(item), shape)
        if memo not in self._done:
            self._kept.append(item)  # an id is only good while its object lives
            self._done[memo] = self._first_of_its_kind(item, shape)
        return self._done[memo]

    def _first_of_its_kind(self, item: Expression, shape: Shape) -> Expression:
        key: Hashable
        if isinstance(item, Load):
            way = self._way(item, shape)
            load = self._known.setdefault(("load", item.tensor.name, way), item)
            if load is item and self.ways.get(id(item), way) != way:
                # One load object seen under two shapes that read it differently: two loads.
                load = self._known[("load", item.tensor.name, way)] = replace(item)
            self.ways[id(load)] = way
            return load
        if isinstance(item, Number):
            key = ("number", repr(item.value), item.dtype)
        elif isinstance(item, Size):
            key = ("size", product_text(item.dims), item.dtype)
        elif isinstance(item, Column):
            key = ("column",)
        elif isinstance(item, Reduce):
            item = replace(item, operand=self.of(item.operand, item.operand_shape))
            key = ("reduce", *item.key)
        elif isinstance(item, At):
            operand, index = self.of(item.operand, item.operand_shape), self.of(item.index, item.rows)
            item = replace(item, operand=operand, index=index)
            key = ("at", *item.key)
        else:
            operands = tuple(self.of(operand, shape) for operand in item.operands)
            item = replace(item, operands=operands)
            key = ("apply", item.op, tuple(map(id, operands)), item.dtype, item.parameters)
        return self._known.setdefault(key, item)

    def _way(self, load: Load, shape: Shape) -> Access:
        if self._rows is None or self._columns == 1 or count(shape) != self._rows:
            return access(load.shape, shape, self._columns)
        # A value for each row.
        if count(load.shape) == 1:
            return Access("uniform")
        if count(load.shape) == self._rows:
            return Access("row")
        raise Unplaceable(f"{load.tensor.name} is broadcast over rows in a way that needs its own kernel")
