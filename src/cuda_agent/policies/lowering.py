"""Turns a traced reference into kernels: which operations share one, and what has to be stored in between.

Operations are fused as they come. A value is stored only where a kernel can't go on with it: where reductions over
different rows or columns meet, or where a broadcast value is seen under another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuda_agent.records.graph import Argument, ArgumentList, Constant, Node, NodeRef, TracedGraph
from cuda_agent.skills.cuda_text import STORAGE
from cuda_agent.skills.element import Names, safe
from cuda_agent.skills.program import (
    Apply,
    At,
    Column,
    Dim,
    Expression,
    Load,
    Number,
    Output,
    Program,
    Reduce,
    ReduceKind,
    Shape,
    Size,
    Tensor,
    Unplaceable,
    Value,
    blocks,
    broadcast,
    count,
    reshaped,
    walk,
)


class Uncovered(Exception):
    """An operation, or a use of one, that the composer has no kernel for; the text says which."""


@dataclass(frozen=True)
class Domain:
    """What a value's reductions go over; a kernel has one."""

    rows: int
    columns: int
    total: bool
    """Over everything: no rows, in two launches."""


@dataclass(frozen=True)
class Viewed:
    """A value that is seen under a shape its expression can't have; stored if anything but a view uses it."""

    value: Value
    shape: Shape


@dataclass(frozen=True)
class Kernel:
    """One program with the skill that generates its kernel."""

    program: Program
    skill: str


@dataclass(frozen=True)
class Plan:
    """All kernels of a candidate, in order, and what its forward returns."""

    inputs: tuple[Node, ...]
    """Inputs of `forward`, in order."""
    kernels: tuple[Kernel, ...]
    results: tuple[str, ...]
    """Python for each tensor that is returned."""
    returns: str
    """Python for what `forward` returns, with `$0`, `$1`, ... for the results."""


Operand = Value | int | float | bool
Result = Value | Viewed
Operation = Callable[["Lowering", Node], Result | tuple[Result, ...]]
"""Maps a call node to its value or values; raises `Uncovered`."""


class Lowering:
    """Builds expressions for the nodes of a graph, one after the other."""

    def __init__(self, graph: TracedGraph) -> None:
        self._graph = graph
        self._known: dict[str, Result | tuple[Result, ...]] = {}
        self._stores: list[Output] = []
        self._stored: dict[int, Value] = {}
        self._names = Names([*_RESERVED, *(node.name for node in graph.nodes if node.kind == "input")])
        self._origin = ""

    # --- what the operations are written with ---

    def value(self, argument: Argument) -> Value:
        """Return an argument as a value whose shape its expression has."""
        result = self.result(argument)
        return result if isinstance(result, Value) else self.store(result.value, result.shape)

    def result(self, argument: Argument) -> Result:
        """Return an argument's value, perhaps under another shape than its expression's."""
        if not isinstance(argument, NodeRef):
            raise Uncovered(f"a tensor argument is {argument}")
        known = self._known[argument.name]
        if isinstance(known, tuple):
            raise Uncovered(f"{argument.name} is used as a whole, though it is several tensors")
        return known

    def operand(self, argument: Argument) -> Operand:
        """Return a tensor argument as a value and a number as it is."""
        if isinstance(argument, Constant):
            number = plain(argument)
            if isinstance(number, int | float | bool):
                return self.size(argument) if argument.symbol else number
            raise Uncovered(f"an operand is {number!r}")
        return self.value(argument)

    def size(self, argument: Constant) -> Value:
        """Return a size that depends on the inputs' shapes as a number to compute with."""
        assert isinstance(argument.value, int)
        return Value(Size((Dim(argument.value, argument.symbol),), "int64"), ())

    def apply(
        self, op: str, operands: Sequence[Operand], dtype: str, *, parameters: Sequence[float] = (), name: str = ""
    ) -> Value:
        """Return a scalar operation on broadcast operands, stored in between where they can't share a kernel."""
        values = [_number(o, dtype, operands, op) if not isinstance(o, Value) else o for o in operands]
        values = self._together(values)
        shape = broadcast([value.shape for value in values])
        expressions = tuple(value.expression for value in values)
        expression = Apply(op, expressions, dtype, tuple(parameters), name, self._origin)
        return Value(expression, shape)

    def reduce(
        self, kind: ReduceKind, value: Value, dims: Sequence[int], *, keep: bool, dtype: str, name: str
    ) -> Value:
        """Return a reduction over `dims`; none given means all.

        Raises:
            Uncovered: the dimensions are not the last ones.
        """
        rank = len(value.shape)
        reduced = sorted({dim % rank for dim in dims}) if dims else list(range(rank))
        kept = [d for d in range(rank) if d not in reduced]
        if rank == 0:
            return value if kind in ("sum", "max", "min", "prod") else self._refuse(f"{kind} of a single number")
        behind = [d for d in kept if reduced and d > reduced[0] and value.shape[d].value != 1]
        if behind:
            raise Uncovered(
                f"{kind} over dimension {', '.join(map(str, reduced))} of {_shape_text(value.shape)}: only the last "
                "dimensions can be reduced"
            )
        rows = tuple(value.shape[d] for d in kept)
        columns = tuple(value.shape[d] for d in reduced)
        wanted = Domain(count(rows), count(columns), not kept)
        own = self._domain(value)
        if own is not None and (wanted.total or own != wanted or count(value.shape) != own.rows * own.columns):
            value = self.store(value)
        leaf = tuple(value.shape[d] if d in kept else Dim(1) for d in range(rank)) if keep else rows
        reduction = Reduce(kind, value.expression, value.shape, rows, columns, dtype, leaf, name, self._origin)
        return Value(reduction, leaf)

    def pick(self, value: Value, index: Value, *, keep: bool) -> Value:
        """Return the element of each row of `value` whose column a row's `index` says."""
        rows, columns = value.shape[:-1], value.shape[-1:]
        wanted = Domain(count(rows), count(columns), False)
        own = self._domain(value)
        if own is not None and (own != wanted or count(value.shape) != own.rows * own.columns):
            value = self.store(value)
        own = self._domain(index)
        if own is not None and (own != wanted or not _aligned(index.expression, index.shape, own)):
            index = self.store(index)
        seen = self.view(index, rows)
        index = seen if isinstance(seen, Value) else self.store(seen.value, seen.shape)
        leaf = (*rows, Dim(1)) if keep else rows
        picked = At(value.expression, value.shape, index.expression, rows, columns, value.dtype, leaf, self._origin)
        return Value(picked, leaf)

    def view(self, result: Result, shape: Shape) -> Result:
        """Return the same elements under another shape; nothing is stored yet."""
        value = result.value if isinstance(result, Viewed) else result
        try:
            return reshaped(value, shape)
        except Unplaceable:
            return Viewed(value, shape)

    def expand(self, value: Value, shape: Shape) -> Value:
        """Return a value broadcast to `shape`."""
        if not _aligned(value.expression, shape, self._domain(value)):
            value = self.store(value)
        return Value(value.expression, shape)

    def store(self, value: Value, shape: Shape | None = None) -> Value:
        """Write a value to memory and return it as it is read back, under `shape` if given."""
        key = id(value.expression)
        if key not in self._stored or count(self._stored[key].shape) != count(value.shape):
            expression = value.expression
            name = self._names.fresh(getattr(expression, "origin", "") or getattr(expression, "name", "") or "copied")
            self._stores.append(Output(name, value))
            self._stored[key] = Value(Load(Tensor(name, name, value.dtype), value.shape), value.shape)
        stored = self._stored[key]
        return stored if shape is None else reshaped(stored, shape)

    # --- what may share a kernel ---

    @staticmethod
    def _domain(value: Value) -> Domain | None:
        for item in walk(value.expression):
            if isinstance(item, Reduce | At):
                return Domain(count(item.rows), count(item.columns), not item.rows)
        return None

    def _together(self, values: list[Value]) -> list[Value]:
        """Store those values that can't be computed in one kernel with the others."""
        shape = broadcast([value.shape for value in values])
        domains = [self._domain(value) for value in values]
        with_reductions = [d for d in domains if d is not None]
        if not with_reductions:
            return values
        # The largest stays: what is stored is read back, and a row's value is cheaper to store than a row.
        chosen = max(with_reductions, key=lambda d: (not d.total, d.rows * d.columns, d.rows))
        result = []
        for value, domain in zip(values, domains):
            if domain is not None and (domain != chosen or not _aligned(value.expression, shape, domain)):
                value = self.store(value)
            result.append(value)
        return result

    @staticmethod
    def _refuse(text: str) -> Value:
        raise Uncovered(text)

    # --- the graph ---

    def plan(self, operations: Mapping[str, Operation]) -> Plan:
        """Lower every node and group what is stored into kernels.

        Raises:
            Uncovered: with every part that there is no kernel for.
        """
        problems: list[str] = []
        lost: set[str] = set()
        for node in self._graph.nodes:
            if any(name in lost for name in _used(node)):
                lost.add(node.name)
                continue
            try:
                self._lower(node, operations)
            except Uncovered as error:
                lost.add(node.name)
                problems.append(f"{_operation_name(node)} ({error})")
        if problems:
            raise Uncovered("; ".join(dict.fromkeys(problems)))
        results = tuple(self._returned(self.result(NodeRef(name=name))) for name in self._graph.outputs)
        inputs = tuple(node for node in self._graph.nodes if node.kind == "input")
        return Plan(inputs, tuple(self._kernels()), results, self._graph.returns)

    def _returned(self, result: Result) -> str:
        """Return Python for a result, which is stored in memory of its own."""
        value, shape = (result.value, result.shape) if isinstance(result, Viewed) else (result, result.shape)
        if not (isinstance(value.expression, Load) and value.expression.tensor.python in self._written()):
            value = self.store(value)
        assert isinstance(value.expression, Load)
        name = value.expression.tensor.name
        written = next(output for output in self._stores if output.name == name)
        if [dim.value for dim in written.value.shape] == [dim.value for dim in shape]:
            return name
        return f"{name}.view({', '.join(str(dim) for dim in shape)})"

    def _written(self) -> set[str]:
        return {output.name for output in self._stores}

    def _lower(self, node: Node, operations: Mapping[str, Operation]) -> None:
        if node.kind == "call":
            if node.value is not None and node.value.dtype not in STORAGE:
                raise Uncovered(f"dtype {node.value.dtype}")
            operation = operations.get(node.target) or operations.get(node.target.rpartition(".")[0])
            if operation is None:
                raise Uncovered("no kernel for it")
            self._origin = _operation_name(node)
            self._known[node.name] = operation(self, node)
            return
        if node.value is None or node.value.kind != "tensor":
            return  # a plain Python input: the trace has its value where it was used
        if node.value.dtype not in STORAGE:
            raise Uncovered(f"dtype {node.value.dtype}")
        shape = shape_of(node)
        if node.kind == "constant" and node.value.text and not node.target:
            number = float(node.value.text) if node.value.dtype.startswith(("float", "bf")) else node.value.text
            self._known[node.name] = Value(Number(_parsed(number), node.value.dtype), shape)
            return
        if node.kind == "constant" and not node.target:
            raise Uncovered("a tensor made while the model runs")
        python = node.name if node.kind == "input" else attribute(node.target)
        name = self._names.fresh(node.target) if node.kind != "input" else node.name
        if safe(name) != name:
            name = self._names.fresh(name)
        self._known[node.name] = Value(Load(Tensor(python, name, node.value.dtype), shape), shape)

    def getitem(self, node: Node) -> Result:
        """Return one of a node's several results."""
        source, index = node.arguments
        assert isinstance(source, NodeRef)
        assert isinstance(index, Constant)
        assert isinstance(index.value, int)
        whole = self._known[source.name]
        assert isinstance(whole, tuple)
        if index.value >= len(whole):
            raise Uncovered(f"its result {index.value}")
        return whole[index.value]

    def _kernels(self) -> list[Kernel]:
        groups: list[tuple[Domain | None, list[Output]]] = []
        place: dict[str, int] = {}
        for output in self._stores:
            domain = self._domain(output.value)
            read = {item.tensor.name for item in walk(output.value.expression) if isinstance(item, Load)}
            earliest = max((place[name] + 1 for name in read if name in place), default=0)
            joined = next(
                (i for i in range(len(groups) - 1, earliest - 1, -1) if _joins(groups[i], domain, output, read)), None
            )
            if joined is None:
                groups.append((domain, []))
                joined = len(groups) - 1
            group_domain, outputs = groups[joined]
            outputs.append(output)
            groups[joined] = (group_domain or domain, outputs)
            place[output.name] = joined
        taken: set[str] = set()
        return [self._kernel(domain, tuple(outputs), taken) for domain, outputs in groups]

    @staticmethod
    def _kernel(domain: Domain | None, outputs: tuple[Output, ...], taken: set[str]) -> Kernel:
        name = program_name(outputs)
        while name in taken:
            name += "_next"
        taken.add(name)
        program = Program(name, outputs)
        skill = "pointwise" if domain is None else ("total_reduction" if domain.total else "row_program")
        return Kernel(program, skill)


def plain(argument: Constant) -> int | float | bool | str | list[int] | None:
    """Return a plain argument's value, with NaN and infinities as numbers."""
    value = argument.value
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value


def shape_of(node: Node) -> Shape:
    """Return a node's shape with the Python texts the trace knows."""
    assert node.value is not None
    symbols = node.symbols or ("",) * len(node.value.shape)
    return tuple(Dim(size, text) for size, text in zip(node.value.shape, symbols))


def attribute(target: str) -> str:
    """Return `layers.0.weight` as it is read from the module: `self.layers[0].weight`."""
    text = "self"
    for part in target.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def program_name(outputs: tuple[Output, ...]) -> str:
    """Return a name that says what a kernel does: the reference's operations in it, in order."""
    telling: list[str] = []
    for output in outputs:
        for item in walk(output.value.expression):
            origin = item.origin if isinstance(item, Apply | Reduce | At) else ""
            if origin and origin not in telling and origin not in _DULL:
                telling.append(origin)
    return "_".join(telling[-4:]) or "copy_elements"


_DULL = {"to_copy", "to", "where", "ne", "eq", "isnan", "scalar_tensor", "gather", "neg"}
_SHORT = {"batch_norm_legit_no_training": "batch_norm", "batch_norm_legit": "instance_norm", "vector_norm": "norm"}
_RESERVED = {"self", "torch", "nn", "math", "ModelNew", "forward", "stream"}


def _joins(group: tuple[Domain | None, list[Output]], domain: Domain | None, output: Output, read: set[str]) -> bool:
    """Whether an output can be computed in a group's kernel, and gains from it."""
    own, outputs = group
    known = {item.tensor.name for other in outputs for item in walk(other.value.expression) if isinstance(item, Load)}
    if not read & known or read & {other.name for other in outputs}:
        return False
    if own is not None and domain is not None:
        return own == domain
    elements = count(output.value.shape)
    if own is not None or domain is not None:
        rows = own or domain
        assert rows is not None
        others = [output] if own is not None else outputs
        return not rows.total and all(count(o.value.shape) == rows.rows * rows.columns for o in others)
    return elements == count(outputs[0].value.shape)


def _aligned(expression: Expression, shape: Shape, domain: Domain | None) -> bool:
    """Whether reductions stay at their row when a value is broadcast to `shape`."""
    if domain is None:
        return True
    elements = count(shape)
    if domain.total:
        return elements == 1
    if elements not in (domain.rows, domain.rows * domain.columns):
        return False
    inner = elements // domain.rows if domain.rows else 1

    def fits(item: Expression) -> bool:
        if isinstance(item, Apply):
            return all(fits(operand) for operand in item.operands)
        if isinstance(item, Column):
            return elements == domain.rows * domain.columns and shape[-1].value == domain.columns
        if not isinstance(item, Reduce | At):
            return True
        found = blocks(item.shape, shape)
        if not found:
            return domain.rows == 1
        return len(found) == 1 and found[0].leading and count(found[0].inner) == inner

    return fits(expression)


def _number(value: float | int | bool, dtype: str, operands: Sequence[Operand], op: str) -> Value:
    """Return a Python number in the type torch would give it beside the other operands."""
    others = [o.dtype for o in operands if isinstance(o, Value) and not isinstance(o.expression, Size)]
    floating = next((d for d in others if "float" in d), "")
    if op in ("eq", "ne", "lt", "le", "gt", "ge"):
        own = "float32" if isinstance(value, float) else (next((d for d in others if d != "bool"), "int64"))
        return Value(Number(value, floating or own), ())
    return Value(Number(value, dtype), ())


def _parsed(number: float | str) -> float | int | bool:
    if isinstance(number, float):
        return number
    return number == "True" if number in ("True", "False") else int(number)


def _used(node: Node) -> list[str]:
    names: list[str] = []

    def visit(argument: Argument) -> None:
        if isinstance(argument, NodeRef):
            names.append(argument.name)
        elif isinstance(argument, ArgumentList):
            for item in argument.items:
                visit(item)

    for argument in (*node.arguments, *node.keywords.values()):
        visit(argument)
    return names


def _operation_name(node: Node) -> str:
    if node.kind != "call":
        return f"{node.kind} {node.name}"
    name = node.target.removeprefix("aten.").partition(".")[0]
    for prefix in ("native_", "_native_", "linalg_", "_"):
        name = name.removeprefix(prefix)
    return _SHORT.get(name, name)


def _shape_text(shape: Shape) -> str:
    return "x".join(str(dim.value) for dim in shape)
