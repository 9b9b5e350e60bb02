"""A traced reference: the flat list of tensor operations that `Model.forward` performs."""

from __future__ import annotations

from typing import Literal

import msgspec

from cuda_agent.records.problem import ValueSpec


class NodeRef(msgspec.Struct, frozen=True, kw_only=True, tag="node"):
    """An argument that is another node's value."""

    name: str


class Constant(msgspec.Struct, frozen=True, kw_only=True, tag="constant"):
    """A plain Python argument: number, bool, string, None, or list of ints."""

    value: int | float | bool | str | list[int] | None
    """JSON has no NaN and no infinity: they are the texts `nan`, `inf` and `-inf`."""
    symbol: str = ""
    """For a size: a Python expression over the inputs' sizes; "" for a number that is fixed."""


class ArgumentList(msgspec.Struct, frozen=True, kw_only=True, tag="list"):
    """A list argument holding nodes or constants (such as the operands of `cat`)."""

    items: tuple[NodeRef | Constant | ArgumentList, ...]


Argument = NodeRef | Constant | ArgumentList


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One value in the graph."""

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "call"]
    target: str
    """`call`: the ATen overload, `aten.softmax.int`; `parameter`/`buffer`: its state_dict name; else ""."""
    arguments: tuple[Argument, ...] = ()
    keywords: dict[str, Argument] = {}
    value: ValueSpec | None = None
    """Shape and dtype of the value at the traced case; None for non-tensor values."""
    symbols: tuple[str, ...] = ()
    """Per dimension, a Python expression over the inputs' sizes, such as `x.shape[0] * 4`; "" where the trace
    knows the number only. Empty when nothing is known."""


class TracedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """`Model.forward` as ATen calls in execution order, traced at one case's shapes."""

    case: str
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    """Names of the nodes that are returned, in order."""
    returns: str = "$0"
    """Python for what is returned, with `$0`, `$1`, ... for the outputs: `($0, $1)`, `{'loss': $0}`."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracing worker is asked for."""

    source: str
    """Text of the problem file."""
    shapes: Literal["cpu", "gpu"] = "cpu"
    """Whose default case to trace; `gpu` shapes are traced on meta tensors, without memory."""


class TraceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracing worker found."""

    graph: TracedGraph | None
    problem: str = ""
    """Why there is no graph; empty when there is one."""
