"""Makes equal expressions of a program one object, so that a kernel reads and computes each of them once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from cuda_agent.skills.element import access
from cuda_agent.skills.program import (
    Apply,
    Column,
    Expression,
    Load,
    Number,
    Output,
    Program,
    Reduce,
    Shape,
    Size,
    Value,
    count,
    product_text,
)


def shared(program: Program, columns: int | None) -> Program:
    """Return the same program with equal subexpressions shared.

    Two loads of one tensor are equal when they read the same element at every position, whatever shape they are
    seen under; `columns` is the length of a row, None where there are no rows.
    """
    known: dict[Hashable, Expression] = {}
    done: dict[tuple[int, int], Expression] = {}

    def visit(item: Expression, shape: Shape) -> Expression:
        memo = (id(item), id(shape))
        if memo not in done:
            done[memo] = _once(item, shape)
        return done[memo]

    def _once(item: Expression, shape: Shape) -> Expression:
        key: Hashable
        if isinstance(item, Load):
            way = access(item.shape, shape, columns)
            # A row's value is found at the row, whether the value it is part of has columns or not.
            place = "row" if way.place == "full" and columns and count(shape) * columns == whole else way.place
            key = ("load", item.tensor.name, place, repr(way.blocks))
        elif isinstance(item, Number):
            key = ("number", repr(item.value), item.dtype)
        elif isinstance(item, Size):
            key = ("size", product_text(item.dims), item.less, item.dtype)
        elif isinstance(item, Column):
            key = ("column",)
        elif isinstance(item, Reduce):
            operand = visit(item.operand, item.operand_shape)
            item = replace(item, operand=operand)
            key = ("reduce", item.kind, id(operand))
        else:
            assert isinstance(item, Apply)
            operands = tuple(visit(operand, shape) for operand in item.operands)
            item = replace(item, operands=operands)
            key = ("apply", item.op, tuple(map(id, operands)), item.dtype, item.parameters)
        return known.setdefault(key, item)

    whole = max(
        (count(r.operand_shape) for r in program.reductions()),
        default=max(count(output.value.shape) for output in program.outputs),
    )
    outputs = tuple(
        Output(output.name, Value(visit(output.value.expression, output.value.shape), output.value.shape))
        for output in program.outputs
    )
    return Program(program.name, outputs)
