"""Traces `Model.forward` into a flat list of ATen calls, with shapes that stay symbolic where they can.

Softmax, the norms, GELU and their like are kept whole: a planner wants to see them, and a person reading the
plan does too. Everything else is decomposed to the core ATen set.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
import socket
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from cuda_agent.errors import ProblemError
from cuda_agent.records import codec
from cuda_agent.records.graph import (
    Argument,
    ArgumentList,
    Constant,
    Node,
    NodeRef,
    TracedGraph,
    TraceReply,
    TraceRequest,
)
from cuda_agent.records.problem import ValueSpec
from cuda_agent.worker.problem_module import LoadedProblem

KEPT_WHOLE = (
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "rms_norm",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "elu",
    "leaky_relu",
    "logsumexp",
    "log_sigmoid_forward",
    "linear",
)


class Untraceable(Exception):
    """The reference can't be written as a flat list of ATen calls; the text says why."""


def main(folder: Path, channel: socket.socket) -> None:
    """Answer `request.json` (a `TraceRequest`) with `result.json` (a `TraceReply`)."""
    request = codec.read(folder / "request.json", TraceRequest)
    try:
        reply = TraceReply(graph=trace(request))
    except (ProblemError, Untraceable) as error:
        reply = TraceReply(graph=None, problem=str(error))
    codec.write(folder / "result.json", reply)


def trace(request: TraceRequest) -> TracedGraph:
    """Return the graph of the problem's default case.

    Raises:
        ProblemError: the problem file does not load or run.
        Untraceable: it runs, but its forward pass is not a static graph of tensor operations.
    """
    device = "meta" if request.shapes == "gpu" else "cpu"
    problem = LoadedProblem(request.source, shapes=request.shapes, device=device)
    model = problem.make_model(0)
    inputs = problem.inputs("default", 0)
    with torch.no_grad():
        exported = _export(model, inputs)
        exported = exported.run_decompositions(_decompositions())
    return _Reader(exported, model, inputs).graph("default")


def _export(model: torch.nn.Module, inputs: list[Any]) -> ExportedProgram:
    """Export with every tensor dimension free if torch allows it, else with fixed shapes."""
    free = tuple([Dim.AUTO] * value.dim() if isinstance(value, torch.Tensor) else None for value in inputs)
    reasons = []
    for dynamic_shapes in (free, None):
        try:
            return torch.export.export(model, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=False)
        except Exception as error:  # torch.export raises dozens of unrelated types; all mean "not traceable"
            reasons.append(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    raise Untraceable(
        f"torch.export could not trace Model.forward: {reasons[-1]}. Data-dependent control flow, custom "
        "autograd functions and non-tensor outputs can't be traced."
    )


def _decompositions() -> dict[Any, Any]:
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    for name in KEPT_WHOLE:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table.pop(getattr(packet, overload), None)
    return table


class _Reader:
    """Turns an exported program into records."""

    def __init__(self, exported: ExportedProgram, model: torch.nn.Module, inputs: list[Any]) -> None:
        self._exported = exported
        self._model = model
        self._inputs = inputs
        self._symbols: dict[str, str] = {}

    def graph(self, case: str) -> TracedGraph:
        output = next(node for node in self._exported.graph.nodes if node.op == "output")
        returned = output.args[0]
        signature = self._exported.graph_signature
        changed = [spec for spec in signature.output_specs if "MUTATION" in spec.kind.name]
        if changed:
            target = changed[0].target or "an input"
            raise Untraceable(f"Model.forward changes {target} in place; only pure functions are traced.")
        results = [item for item in returned if isinstance(item, fx.Node)]
        if len(results) != len(returned) or not results:
            raise Untraceable("Model.forward returns something other than tensors.")
        live = _live(results)
        specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        nodes = []
        for node in self._exported.graph.nodes:
            if node.op == "placeholder":
                record = self._placeholder(node, specs[node.name])
                if record.kind == "input" or node in live:
                    nodes.append(record)
            elif node.op == "call_function" and node in live:
                if isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
                    nodes.append(self._call(node))
            elif node.op == "get_attr" and node in live:
                raise Untraceable(f"Model.forward uses a submodule as a value ({node.target}): control flow.")
        return TracedGraph(
            case=case,
            nodes=tuple(nodes),
            outputs=tuple(node.name for node in results),
            returns=_structure(self._exported.call_spec.out_spec),
        )

    def _placeholder(self, node: fx.Node, spec: Any) -> Node:
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(value, torch.Tensor):
                for index, size in enumerate(value.shape):
                    name = str(size.node.expr) if isinstance(size, torch.SymInt) else ""
                    if re.fullmatch(r"[A-Za-z_]\w*", name):
                        self._symbols.setdefault(name, f"{node.name}.shape[{index}]")
                symbols = tuple(f"{node.name}.shape[{index}]" for index in range(value.dim()))
                return Node(name=node.name, kind="input", target="", value=_spec(value), symbols=symbols)
            plain = ValueSpec(kind="value", dtype=type(value).__name__, text=repr(value))
            return Node(name=node.name, kind="input", target="", value=plain)
        kind: Any = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}.get(spec.kind, "constant")
        target = spec.target or ""
        if kind == "constant":
            return self._constant(node, target)
        assert value is not None
        symbols = tuple(f"{_attribute(target)}.shape[{index}]" for index in range(value.dim()))
        return Node(name=node.name, kind=kind, target=target, value=_spec(value), symbols=symbols)

    def _constant(self, node: fx.Node, target: str) -> Node:
        """A tensor that is an attribute of the model without being a buffer, or made in `forward`."""
        value = self._exported.constants.get(target)
        if value is None:
            value = node.meta["val"]
        text = ""
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
            text = repr(value.reshape(()).item())
        spec = _spec(value)
        spec = ValueSpec(kind="tensor", shape=spec.shape, dtype=spec.dtype, text=text)
        try:
            operator.attrgetter(target)(self._model)
        except AttributeError:
            return Node(name=node.name, kind="constant", target="", value=spec)
        return Node(name=node.name, kind="constant", target=target, value=spec)

    def _call(self, node: fx.Node) -> Node:
        value = node.meta["val"]
        spec = None
        symbols: tuple[str, ...] = ()
        if isinstance(value, torch.Tensor):
            spec = _spec(value)
            symbols = tuple(self._symbol(size) for size in value.shape)
        return Node(
            name=node.name,
            kind="call",
            target=str(node.target) if node.target is not operator.getitem else "getitem",
            arguments=tuple(self._argument(argument) for argument in node.args),
            keywords={key: self._argument(argument) for key, argument in node.kwargs.items()},
            value=spec,
            symbols=symbols,
        )

    def _symbol(self, size: Any) -> str:
        """The size as Python over the inputs' shapes, or "" when it is a plain number."""
        if not isinstance(size, torch.SymInt):
            return ""
        text = str(size.node.expr)
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            return ""
        allowed = (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Constant, ast.operator)
        if not all(isinstance(part, allowed) for part in ast.walk(tree)):
            return ""
        names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
        if not names <= self._symbols.keys():
            return ""
        replaced = re.sub(r"[A-Za-z_]\w*", lambda match: self._symbols[match[0]], text)
        return replaced if isinstance(tree.body, ast.Name) else f"({replaced})"

    def _argument(self, value: Any) -> Argument:
        if isinstance(value, fx.Node):
            seen = value.meta.get("val")
            if isinstance(seen, torch.SymInt | torch.SymFloat | torch.SymBool):
                return self._argument(seen)
            return NodeRef(name=value.name)
        if isinstance(value, torch.SymInt):
            return Constant(value=_number(value), symbol=self._symbol(value))
        if isinstance(value, torch.SymFloat):
            return self._argument(float(value))
        if isinstance(value, torch.SymBool):
            return Constant(value=bool(value))
        if isinstance(value, float) and not math.isfinite(value):
            return Constant(value=str(value))
        if value is None or isinstance(value, bool | int | float | str):
            return Constant(value=value)
        if isinstance(value, list | tuple):
            items = [self._argument(item) for item in value]
            numbers = [item.value for item in items if isinstance(item, Constant)]
            whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
            if len(whole) == len(items):
                return Constant(value=whole)
            plain = [item for item in items if not isinstance(item, ArgumentList) or item.items]
            return ArgumentList(items=tuple(plain))
        return Constant(value=str(value).removeprefix("torch."))


def _structure(spec: Any) -> str:
    """Return Python for a structure of tensors, with `$0`, `$1`, ... in their places.

    Raises:
        Untraceable: it is built of something else than tuples, lists and dicts.
    """
    numbers = itertools.count()

    def text(part: Any) -> str:
        if part.is_leaf():
            return f"${next(numbers)}"
        # torch before 2.10 has the attribute only, later ones deprecate it.
        children = part.children() if hasattr(part, "children") else part.children_specs
        inside = [text(child) for child in children]
        if part.type is tuple:
            return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
        if part.type is list:
            return f"[{', '.join(inside)}]"
        if part.type is dict:
            return "{" + ", ".join(f"{key!r}: {value}" for key, value in zip(part.context, inside)) + "}"
        raise Untraceable(
            f"Model.forward returns a {part.type.__name__}; tensors, tuples, lists and dicts can be traced."
        )

    return text(spec)


def _live(results: list[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen


def _number(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _spec(value: torch.Tensor) -> ValueSpec:
    shape = tuple(_number(size) for size in value.shape)
    return ValueSpec(kind="tensor", shape=shape, dtype=str(value.dtype).removeprefix("torch."))


def _attribute(target: str) -> str:
    """`layers.0.weight` as it is read from the module: `self.layers[0].weight`."""
    text = "self"
    for part in target.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text
