"""What each ATen operation computes, in terms of element expressions and reductions."""

from __future__ import annotations

import math
from typing import Any

from cuda_agent.policies.lowering import Lowering, Operation, Result, Uncovered, Viewed, plain, shape_of
from cuda_agent.records.graph import Argument, Constant, Node
from cuda_agent.skills.program import Dim, Expression, Load, Number, ReduceKind, Shape, Size, Value, count


def _dtype(node: Node) -> str:
    assert node.value is not None
    return node.value.dtype


def _argument(node: Node, position: int, keyword: str) -> Argument | None:
    if position < len(node.arguments):
        return node.arguments[position]
    return node.keywords.get(keyword)


def _plain(node: Node, position: int, keyword: str, default: Any = None) -> Any:
    """Return a plain Python argument; `default` when it is absent."""
    found = _argument(node, position, keyword)
    if found is None:
        return default
    if not isinstance(found, Constant):
        raise Uncovered(f"its argument {keyword} is a tensor")
    return plain(found)


def _optional(lowering: Lowering, node: Node, position: int, keyword: str) -> Value | None:
    found = _argument(node, position, keyword)
    if found is None or (isinstance(found, Constant) and found.value is None):
        return None
    return lowering.value(found)


def _dims(node: Node, position: int = 1, keyword: str = "dim") -> list[int]:
    """Return the dimensions to reduce; empty means all."""
    found = _plain(node, position, keyword, [])
    if found is None:
        return []
    return [found] if isinstance(found, int) else list(found)


# --- one scalar operation ---


def _scalar(op: str, operands: int) -> Operation:
    """An operation that is one scalar operation on its first `operands` arguments."""

    def lower(lowering: Lowering, node: Node) -> Value:
        values = [lowering.operand(argument) for argument in node.arguments[:operands]]
        return lowering.apply(op, values, _dtype(node), name=node.name)

    return lower


def _with_parameters(op: str, *parameters: tuple[int, str, float]) -> Operation:
    """A scalar operation with plain numbers: (position, keyword, default) each."""

    def lower(lowering: Lowering, node: Node) -> Value:
        numbers = [float(_plain(node, *parameter)) for parameter in parameters]
        value = lowering.value(node.arguments[0])
        return lowering.apply(op, [value], _dtype(node), parameters=numbers, name=node.name)

    return lower


def _sum_of(op: str) -> Operation:
    """`add` and `sub` with their `alpha`."""

    def lower(lowering: Lowering, node: Node) -> Value:
        first, second = (lowering.operand(argument) for argument in node.arguments[:2])
        alpha = _plain(node, 2, "alpha", 1)
        if alpha != 1:
            second = second * alpha if not isinstance(second, Value) else _times(lowering, second, alpha, _dtype(node))
        return lowering.apply(op, [first, second], _dtype(node), name=node.name)

    return lower


def _times(lowering: Lowering, value: Value, factor: float, dtype: str) -> Value:
    return lowering.apply("mul", [value, factor], dtype, name="scaled")


def _reversed_sub(lowering: Lowering, node: Node) -> Value:
    first, second = (lowering.operand(argument) for argument in node.arguments[:2])
    alpha = _plain(node, 2, "alpha", 1)
    if alpha != 1 and isinstance(first, Value):
        first = _times(lowering, first, alpha, _dtype(node))
    return lowering.apply("sub", [second, first], _dtype(node), name=node.name)


def _divide(lowering: Lowering, node: Node) -> Value:
    first, second = (lowering.operand(argument) for argument in node.arguments[:2])
    mode = _plain(node, 2, "rounding_mode")
    dtype = _dtype(node)
    if mode is not None and "float" not in dtype:
        if mode != "floor":
            raise Uncovered(f"integer division with rounding_mode {mode!r}")
        return lowering.apply("floor_divide", [first, second], dtype, name=node.name)
    if mode is None and not isinstance(second, Value) and second != 0:
        # A power of two divides exactly as its inverse multiplies; other divisors keep the division.
        mantissa, _ = math.frexp(float(second))
        if mantissa in (0.5, -0.5):
            return lowering.apply("mul", [first, 1.0 / float(second)], dtype, name=node.name)
    quotient = lowering.apply("div", [first, second], dtype, name=node.name)
    return quotient if mode is None else lowering.apply(mode, [quotient], dtype, name=node.name)


def _power(lowering: Lowering, node: Node) -> Value:
    base, exponent = (lowering.operand(argument) for argument in node.arguments[:2])
    dtype = _dtype(node)
    if not isinstance(exponent, Value):
        known = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -1.0: "reciprocal", -0.5: "rsqrt", 1.0: "copy"}
        if float(exponent) in known and ("float" in dtype or exponent > 0):
            return lowering.apply(known[float(exponent)], [base], dtype, name=node.name)
        if "float" not in dtype:
            raise Uncovered(f"an integer to the power {exponent}")
        exponent = float(exponent)
    return lowering.apply("pow", [base, exponent], dtype, name=node.name)


def _clamp(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    for position, keyword, op in ((1, "min", "maximum"), (2, "max", "minimum")):
        bound = _argument(node, position, keyword)
        if bound is not None and not (isinstance(bound, Constant) and bound.value is None):
            value = lowering.apply(op, [value, lowering.operand(bound)], _dtype(node), name=node.name)
    return value


def _one_bound(op: str) -> Operation:
    def lower(lowering: Lowering, node: Node) -> Value:
        operands = [lowering.operand(argument) for argument in node.arguments[:2]]
        return lowering.apply(op, operands, _dtype(node), name=node.name)

    return lower


def _hardtanh(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    low, high = _plain(node, 1, "min_val", -1.0), _plain(node, 2, "max_val", 1.0)
    return lowering.apply("clamp", [value], _dtype(node), parameters=(float(low), float(high)), name=node.name)


def _gelu(lowering: Lowering, node: Node) -> Value:
    op = "gelu_tanh" if _plain(node, 1, "approximate", "none") == "tanh" else "gelu"
    return lowering.apply(op, [lowering.value(node.arguments[0])], _dtype(node), name=node.name)


def _round(lowering: Lowering, node: Node) -> Value:
    if _plain(node, 1, "decimals", 0):
        raise Uncovered("rounding to decimals")
    return lowering.apply("round", [lowering.value(node.arguments[0])], _dtype(node), name=node.name)


def _where(lowering: Lowering, node: Node) -> Value:
    condition, first, second = (lowering.operand(argument) for argument in node.arguments[:3])
    return lowering.apply("where", [condition, first, second], _dtype(node), name=node.name)


def _cast(lowering: Lowering, node: Node) -> Result:
    result = lowering.result(node.arguments[0])
    value = result.value if isinstance(result, Viewed) else result
    if value.dtype == _dtype(node):
        return result
    cast = lowering.apply("cast", [value], _dtype(node), name=node.name)
    return Viewed(cast, result.shape) if isinstance(result, Viewed) else cast


def _prelu(lowering: Lowering, node: Node) -> Value:
    value, weight = (lowering.value(argument) for argument in node.arguments[:2])
    dtype = _dtype(node)
    positive = lowering.apply("gt", [value, 0.0], "bool", name="positive")
    return lowering.apply("where", [positive, value, lowering.apply("mul", [weight, value], dtype)], dtype)


def _log_sigmoid(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    value = lowering.value(node.arguments[0])
    return (lowering.apply("log_sigmoid", [value], value.dtype, name=node.name),)


def _number(lowering: Lowering, node: Node) -> Value:
    """`scalar_tensor`, `full` and their like."""
    values = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
    kind = node.target.split(".")[1]
    value = values.get(kind)
    if value is None:
        value = _plain(node, 0 if kind == "scalar_tensor" else 1, "fill_value")
    if not isinstance(value, int | float | bool):
        raise Uncovered(f"it is filled with {value!r}")
    return Value(Number(value, _dtype(node)), shape_of(node))


# --- shapes ---


def _view(lowering: Lowering, node: Node) -> Result:
    return lowering.view(lowering.result(node.arguments[0]), shape_of(node))


def _expand(lowering: Lowering, node: Node) -> Value:
    return lowering.expand(lowering.value(node.arguments[0]), shape_of(node))


def _same(lowering: Lowering, node: Node) -> Result:
    return lowering.result(node.arguments[0])


def _slice(lowering: Lowering, node: Node) -> Result:
    """Slices that take everything, as `x[:, None]` makes them."""
    result = lowering.result(node.arguments[0])
    if [dim.value for dim in result.shape] != [dim.value for dim in shape_of(node)]:
        raise Uncovered("a part of a tensor")
    return result


def _permute(lowering: Lowering, node: Node) -> Result:
    """Moves of dimensions of size one only."""
    result = lowering.result(node.arguments[0])
    rank = len(result.shape)
    name = node.target.split(".")[1]
    order = list(range(rank))
    if name == "permute":
        order = [d % rank for d in _plain(node, 1, "dims")]
    elif rank > 1:
        first, second = (0, 1) if name == "t" else (_plain(node, 1, "dim0") % rank, _plain(node, 2, "dim1") % rank)
        order[first], order[second] = order[second], order[first]
    moving = [d for d in order if result.shape[d].value != 1]
    if moving != sorted(moving):
        raise Uncovered("it changes the order of elements in memory")
    return lowering.view(result, tuple(result.shape[d] for d in order))


def _repeat(lowering: Lowering, node: Node) -> Result:
    """Repeats along the first dimension, as instance norm does with its weights."""
    value = lowering.value(node.arguments[0])
    counts = _plain(node, 1, "repeats")
    if len(value.shape) != 1 or len(counts) != 1:
        raise Uncovered("only vectors can be repeated")
    shape = shape_of(node)
    times = Dim(counts[0], f"{shape[0].text} // {value.shape[0]}" if shape[0].text else "")
    return Viewed(Value(value.expression, (times, value.shape[0])), shape)


# --- reductions ---


def _reduction(kind: Any) -> Operation:
    def lower(lowering: Lowering, node: Node) -> Value:
        value = lowering.value(node.arguments[0])
        keep = bool(_plain(node, 2, "keepdim", False))
        return lowering.reduce(kind, value, _dims(node), keep=keep, dtype=_dtype(node), name=node.name)

    return lower


def _mean(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    dims, keep = _dims(node) if node.target != "aten.mean.default" else [], bool(_plain(node, 2, "keepdim", False))
    return _mean_of(lowering, value, dims, keep=keep, dtype=_dtype(node), name=node.name)


def _mean_of(lowering: Lowering, value: Value, dims: list[int], *, keep: bool, dtype: str, name: str) -> Value:
    """Return the sum over `dims` divided by the number of elements."""
    rank = len(value.shape)
    reduced = [value.shape[d % rank] for d in dims] if dims else list(value.shape)
    total = lowering.reduce("sum", value, dims, keep=keep, dtype=dtype, name=f"{name}_sum")
    size = Value(Size(tuple(reduced), dtype if "float" in dtype else "float32"), ())
    return lowering.apply("div", [total, size], dtype, name=name)


def _variance_of(
    lowering: Lowering, value: Value, dims: list[int], *, keep: bool, correction: float, dtype: str, name: str
) -> tuple[Value, Value, Value]:
    """Return variance, mean, and value - mean, by the corrected two-pass algorithm.

    The mean of a long row is rounded; the mean of what is left after subtracting it says by how much. Without that,
    rows of nearly equal values would lose most digits of their small variance.
    Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983, equation 1.7.
    """
    rough = _mean_of(lowering, value, dims, keep=True, dtype=dtype, name=f"{name}_rough_mean")
    shifted = lowering.apply("sub", [value, rough], dtype, name="shifted")
    left = _mean_of(lowering, shifted, dims, keep=True, dtype=dtype, name="left_over")
    squares = lowering.apply("square", [shifted], dtype, name="squares")
    rank = len(value.shape)
    reduced_dims = tuple(value.shape[d % rank] for d in dims) if dims else value.shape
    size = Value(Size(reduced_dims, dtype), ())
    divisor = lowering.apply("sub", [size, correction], dtype, name="divisor") if correction else size
    total = lowering.reduce("sum", squares, dims, keep=True, dtype=dtype, name="sum_of_squares")
    excess = lowering.apply("mul", [lowering.apply("mul", [left, left], dtype), size], dtype, name="excess")
    difference = lowering.apply("sub", [total, excess], dtype, name="difference")
    # Rounding may push a variance of nothing below zero. (NaN stays: it is a maximum's result.)
    variance = lowering.apply("div", [lowering.apply("maximum", [difference, 0.0], dtype), divisor], dtype, name=name)
    mean = lowering.apply("add", [rough, left], dtype, name="mean")
    centred = lowering.apply("sub", [shifted, left], dtype, name="centred")
    if keep:
        return variance, mean, centred
    reduced = {d % rank for d in dims} if dims else set(range(rank))
    kept = tuple(dim for d, dim in enumerate(value.shape) if d not in reduced)
    return _as_value(lowering, variance, kept), _as_value(lowering, mean, kept), centred


def _as_value(lowering: Lowering, value: Value, shape: Shape) -> Value:
    """Return a value under another shape, stored if its expression can't have that shape."""
    seen = lowering.view(value, shape)
    return seen if isinstance(seen, Value) else lowering.store(seen.value, seen.shape)


def _variance(lowering: Lowering, node: Node) -> Result | tuple[Result, ...]:
    value = lowering.value(node.arguments[0])
    correction = _plain(node, 2, "correction", 1)
    both = _variance_of(
        lowering,
        value,
        _dims(node),
        keep=bool(_plain(node, 3, "keepdim", False)),
        correction=float(1 if correction is None else correction),
        dtype=value.dtype,
        name="variance",
    )
    kind = node.target.split(".")[1]
    if kind == "std":
        return lowering.apply("sqrt", [both[0]], value.dtype, name=node.name)
    return both[:2] if kind == "var_mean" else both[0]


def _vector_norm(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    order = float(_plain(node, 1, "ord", 2))
    dims, keep, dtype = _dims(node, 2), bool(_plain(node, 3, "keepdim", False)), _dtype(node)
    if order == 2:
        squares = lowering.apply("square", [value], dtype, name="squares")
        total = lowering.reduce("sum", squares, dims, keep=keep, dtype=dtype, name="sum_of_squares")
        return lowering.apply("sqrt", [total], dtype, name=node.name)
    magnitude = lowering.apply("abs", [value], dtype, name="magnitude")
    if order == 1:
        return lowering.reduce("sum", magnitude, dims, keep=keep, dtype=dtype, name=node.name)
    if math.isinf(order):
        kind: ReduceKind = "max" if order > 0 else "min"
        return lowering.reduce(kind, magnitude, dims, keep=keep, dtype=dtype, name=node.name)
    raise Uncovered(f"a norm of order {order:g}")


def _largest(kind: Any) -> Operation:
    """`max.dim` and `min.dim`: values and indices."""

    def lower(lowering: Lowering, node: Node) -> tuple[Result, ...]:
        value = lowering.value(node.arguments[0])
        dim, keep = [int(_plain(node, 1, "dim"))], bool(_plain(node, 2, "keepdim", False))
        found = lowering.reduce(kind, value, dim, keep=keep, dtype=value.dtype, name=f"row_{kind}")
        index = lowering.reduce(_ARG[kind], value, dim, keep=keep, dtype="int64", name=f"row_{_ARG[kind]}")
        return found, index

    return lower


_ARG: dict[str, Any] = {"max": "argmax", "min": "argmin"}


def _arg(kind: Any) -> Operation:
    def lower(lowering: Lowering, node: Node) -> Value:
        value = lowering.value(node.arguments[0])
        dim, keep = _plain(node, 1, "dim"), bool(_plain(node, 2, "keepdim", False))
        if dim is None and len(value.shape) > 1:
            raise Uncovered("the index within a whole tensor")
        return lowering.reduce(kind, value, [-1 if dim is None else dim], keep=keep, dtype="int64", name=node.name)

    return lower


def _any_or_all(kind: Any) -> Operation:
    def lower(lowering: Lowering, node: Node) -> Value:
        value = lowering.value(node.arguments[0])
        truth = lowering.apply("cast", [value], "int32", name="truth")
        if value.dtype != "bool":
            truth = lowering.apply("cast", [lowering.apply("ne", [value, 0], "bool")], "int32", name="truth")
        dims, keep = _dims(node), bool(_plain(node, 2, "keepdim", False))
        found = lowering.reduce(kind, truth, dims, keep=keep, dtype="int32", name=node.name)
        return lowering.apply("cast", [found], "bool", name=node.name)

    return lower


def _logsumexp(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    dims, keep, dtype = _dims(node), bool(_plain(node, 2, "keepdim", False)), _dtype(node)
    logarithm = _log_of_sum(lowering, value, dims, dtype, node.name)
    shape = logarithm.shape
    if keep:
        return logarithm
    rank = len(shape)
    reduced = {d % rank for d in dims} if dims else set(range(rank))
    return _as_value(lowering, logarithm, tuple(shape[d] for d in range(rank) if d not in reduced))


def _log_of_sum(lowering: Lowering, value: Value, dims: list[int], dtype: str, name: str) -> Value:
    largest = lowering.reduce("max", value, dims, keep=True, dtype=dtype, name="row_max")
    # An infinite maximum would make NaN of inf - inf; torch shifts by nothing then.
    infinite = lowering.apply("isinf", [largest], "bool", name="infinite")
    shift = lowering.apply("where", [infinite, 0.0, largest], dtype, name="shift")
    shifted = lowering.apply("sub", [value, shift], dtype, name="shifted")
    powers = lowering.apply("exp_of_nonpositive", [shifted], dtype, name="power")
    total = lowering.reduce("sum", powers, dims, keep=True, dtype=dtype, name="row_sum")
    logarithm = lowering.apply("log", [total], dtype, name="log_sum")
    return lowering.apply("add", [logarithm, shift], dtype, name=name)


def _softmax(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    dim, dtype = [int(_plain(node, 1, "dim"))], _dtype(node)
    largest = lowering.reduce("max", value, dim, keep=True, dtype=dtype, name="row_max")
    shifted = lowering.apply("sub", [value, largest], dtype, name="shifted")
    power = lowering.apply("exp_of_nonpositive", [shifted], dtype, name="power")
    total = lowering.reduce("sum", power, dim, keep=True, dtype=dtype, name="row_sum")
    if "_log_softmax" in node.target:
        logarithm = lowering.apply("log", [total], dtype, name="log_sum")
        return lowering.apply("sub", [shifted, logarithm], dtype, name=node.name)
    # One division a row instead of one an element.
    inverse = lowering.apply("reciprocal", [total], dtype, name="inverse_sum")
    return lowering.apply("mul", [power, inverse], dtype, name=node.name)


# --- norms ---


def _normalized(
    lowering: Lowering, value: Value, dims: list[int], eps: float, dtype: str, name: str
) -> tuple[Value, Value, Value]:
    """Return (value - mean) / sqrt(variance + eps), mean, and 1 / sqrt(variance + eps)."""
    variance, mean, centred = _variance_of(
        lowering, value, dims, keep=True, correction=0.0, dtype=dtype, name="variance"
    )
    safe = lowering.apply("add", [variance, eps], dtype, name="variance_eps")
    scale = lowering.apply("rsqrt", [safe], dtype, name="inverse_deviation")
    return lowering.apply("mul", [centred, scale], dtype, name=name), mean, scale


def _affine(lowering: Lowering, value: Value, weight: Value | None, bias: Value | None, dtype: str, name: str) -> Value:
    if weight is not None:
        value = lowering.apply("mul", [value, weight], dtype, name=f"{name}_weighted" if bias is not None else name)
    if bias is not None:
        value = lowering.apply("add", [value, bias], dtype, name=name)
    return value


def _layer_norm(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    value = lowering.value(node.arguments[0])
    normalized = _plain(node, 1, "normalized_shape")
    weight, bias = _optional(lowering, node, 2, "weight"), _optional(lowering, node, 3, "bias")
    dims = list(range(-len(normalized), 0))
    name = "layer_norm"
    result, mean, scale = _normalized(lowering, value, dims, float(_plain(node, 4, "eps")), value.dtype, name)
    return _affine(lowering, result, weight, bias, value.dtype, name), mean, scale


def _rms_norm(lowering: Lowering, node: Node) -> Value:
    value = lowering.value(node.arguments[0])
    normalized, weight = _plain(node, 1, "normalized_shape"), _optional(lowering, node, 2, "weight")
    eps = _plain(node, 3, "eps")
    if eps is None:
        eps = _EPSILON[value.dtype]
    dims, dtype = list(range(-len(normalized), 0)), value.dtype
    squares = lowering.apply("square", [value], dtype, name="squares")
    mean = _mean_of(lowering, squares, dims, keep=True, dtype=dtype, name="mean_square")
    safe = lowering.apply("add", [mean, float(eps)], dtype, name="mean_square_eps")
    scale = lowering.apply("rsqrt", [safe], dtype, name="inverse_rms")
    result = lowering.apply("mul", [value, scale], dtype, name="rms_norm")
    return _affine(lowering, result, weight, None, dtype, "rms_norm")


def _fused_rms_norm(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    return (_rms_norm(lowering, node),)


_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""torch.finfo(dtype).eps, the default of `rms_norm`."""


def _group_norm(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    value = lowering.value(node.arguments[0])
    groups = int(_plain(node, 6, "group"))
    batch, channels, *spatial = value.shape
    # Channels are split into (groups, channels of a group): a row is a group.
    inner = Dim(channels.value // groups, f"{channels} // {groups}" if channels.text else "")
    split = (batch, Dim(groups), inner, *spatial)
    behind = (Dim(1),) * len(spatial)
    seen = _as_value(lowering, value, split)
    dims = list(range(2, len(split)))
    result, mean, scale = _normalized(
        lowering, seen, dims, float(_plain(node, 7, "eps")), value.dtype, "group_normalized"
    )
    of_channel = (Dim(groups), inner, *behind)
    weight, bias = (_reseen(lowering, node, n, of_channel) for n in (1, 2))
    result = _affine(lowering, result, weight, bias, value.dtype, "group_norm")
    return lowering.view(result, value.shape), mean, scale


def _reseen(lowering: Lowering, node: Node, position: int, shape: Shape) -> Value | None:
    """Return an optional vector argument under a shape that broadcasts over channels."""
    value = _optional(lowering, node, position, "")
    return None if value is None else _as_value(lowering, value, shape)


def _batch_norm(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    """With running statistics: nothing to reduce."""
    value = lowering.value(node.arguments[0])
    dtype = value.dtype
    of_channel = (value.shape[1], *((Dim(1),) * (len(value.shape) - 2)))
    weight, bias, mean, variance = (_reseen(lowering, node, n, of_channel) for n in (1, 2, 3, 4))
    assert mean is not None
    assert variance is not None
    statistics = mean.dtype
    safe = lowering.apply("add", [variance, float(_plain(node, 6, "eps"))], statistics, name="variance_eps")
    scale = lowering.apply("rsqrt", [safe], statistics, name="inverse_deviation")
    shifted = lowering.apply("sub", [value, mean], dtype, name="shifted")
    name = "batch_norm"
    return (_affine(lowering, lowering.apply("mul", [shifted, scale], dtype, name=name), weight, bias, dtype, name),)


def _batch_norm_of_instances(lowering: Lowering, node: Node) -> tuple[Result, ...]:
    """Batch norm without running statistics over a batch of one, which is how instance norm arrives."""
    value = lowering.value(node.arguments[0])
    batch, channels, *spatial = value.shape
    if batch.value != 1 or not spatial:
        raise Uncovered("batch statistics over several samples")
    weights = [lowering.result(node.arguments[n]) for n in (1, 2) if not (isinstance(node.arguments[n], Constant))]
    repeated = [w for w in weights if isinstance(w, Viewed) and len(w.value.shape) == 2]
    split: Shape = (channels,)
    if weights and len(repeated) == len(weights):
        split = repeated[0].value.shape
    elif repeated:
        raise Uncovered("weights that are repeated differently")
    seen = _as_value(lowering, value, (*split, *spatial))
    dims, dtype = list(range(len(split), len(split) + len(spatial))), value.dtype
    name = "instance_norm"
    result, mean, scale = _normalized(lowering, seen, dims, float(_plain(node, 5, "eps")), dtype, name)
    behind = (Dim(1),) * len(spatial)
    parts: list[Value | None] = [None, None]
    for index, weight in enumerate(weights):
        own = weight.value if isinstance(weight, Viewed) else weight
        parts[index] = Value(_under(own.expression, (split[-1], *behind)), (split[-1], *behind))
    result = _affine(lowering, result, parts[0], parts[1], dtype, name)
    return lowering.view(result, value.shape), mean, scale


def _under(expression: Expression, shape: Shape) -> Expression:
    if not isinstance(expression, Load) or count(expression.shape) != count(shape):
        raise Uncovered("weights that are computed")
    return Load(expression.tensor, shape)


def _gather(lowering: Lowering, node: Node) -> Value:
    """One element of each row."""
    value, index = lowering.value(node.arguments[0]), lowering.value(node.arguments[2])
    rank, dim = len(value.shape), int(_plain(node, 1, "dim"))
    rows_differ = [d.value for d in index.shape[:-1]] != [d.value for d in value.shape[:-1]]
    if rank < 2 or dim % rank != rank - 1 or index.shape[-1].value != 1 or len(index.shape) != rank or rows_differ:
        raise Uncovered("anything but one element of each row")
    return lowering.pick(value, index, keep=True)


def _dot(lowering: Lowering, node: Node) -> Value:
    """A matrix times a vector, or two vectors: a product and a sum over the last dimension."""
    first, second = (lowering.value(argument) for argument in node.arguments[:2])
    if len(second.shape) != 1:
        raise Uncovered("a matrix product")
    product = lowering.apply("mul", [first, second], _dtype(node), name="product")
    return lowering.reduce("sum", product, [-1], keep=False, dtype=_dtype(node), name=node.name)


def _getitem(lowering: Lowering, node: Node) -> Result:
    return lowering.getitem(node)


def _table() -> dict[str, Operation]:
    unary = (
        "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sinh cosh asinh acosh atanh sin cos tan asin "
        "acos atan erf erfc floor ceil trunc reciprocal relu sigmoid silu mish hardswish hardsigmoid isnan isinf sign"
    )
    table: dict[str, Operation] = {f"aten.{name}": _scalar(name, 1) for name in unary.split()}
    binary = {
        "mul": "mul",
        "maximum": "maximum",
        "minimum": "minimum",
        "eq": "eq",
        "ne": "ne",
        "lt": "lt",
        "le": "le",
        "gt": "gt",
        "ge": "ge",
        "atan2": "atan2",
        "fmod": "fmod",
        "remainder": "remainder",
        "hypot": "hypot",
        "logical_and": "and",
        "logical_or": "or",
        "logical_xor": "xor",
        "bitwise_and": "bit_and",
        "bitwise_or": "bit_or",
        "bitwise_xor": "bit_xor",
    }
    table |= {f"aten.{name}": _scalar(op, 2) for name, op in binary.items()}
    named: dict[str, Operation] = {
        "logical_not": _scalar("not", 1),
        "bitwise_not": _bitwise_not,
        "add": _sum_of("add"),
        "sub": _sum_of("sub"),
        "rsub": _reversed_sub,
        "div": _divide,
        "pow": _power,
        "clamp": _clamp,
        "clamp_min": _one_bound("maximum"),
        "clamp_max": _one_bound("minimum"),
        "hardtanh": _hardtanh,
        "gelu": _gelu,
        "elu": _with_parameters("elu", (1, "alpha", 1.0), (2, "scale", 1.0), (3, "input_scale", 1.0)),
        "leaky_relu": _with_parameters("leaky_relu", (1, "negative_slope", 0.01)),
        "softplus": _with_parameters("softplus", (1, "beta", 1.0), (2, "threshold", 20.0)),
        "log_sigmoid_forward": _log_sigmoid,
        "_prelu_kernel": _prelu,
        "round": _round,
        "where": _where,
        "_to_copy": _cast,
        "to": _cast,
        "scalar_tensor": _number,
        "full": _number,
        "full_like": _number,
        "zeros": _number,
        "zeros_like": _number,
        "ones": _number,
        "ones_like": _number,
        "view": _view,
        "_unsafe_view": _view,
        "reshape": _view,
        "unsqueeze": _view,
        "squeeze": _view,
        "expand": _expand,
        "repeat": _repeat,
        "slice": _slice,
        "permute": _permute,
        "transpose": _permute,
        "t": _permute,
        "clone": _same,
        "contiguous": _same,
        "alias": _same,
        "detach": _same,
        "detach_": _same,
        "lift_fresh_copy": _same,
        "sum": _reduction("sum"),
        "amax": _reduction("max"),
        "amin": _reduction("min"),
        "prod": _reduction("prod"),
        "mean": _mean,
        "var": _variance,
        "std": _variance,
        "var_mean": _variance,
        "linalg_vector_norm": _vector_norm,
        "argmax": _arg("argmax"),
        "argmin": _arg("argmin"),
        "any": _any_or_all("max"),
        "all": _any_or_all("min"),
        "logsumexp": _logsumexp,
        "_softmax": _softmax,
        "_log_softmax": _softmax,
        "native_layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "_fused_rms_norm": _fused_rms_norm,
        "native_group_norm": _group_norm,
        "_native_batch_norm_legit_no_training": _batch_norm,
        "gather": _gather,
        "mv": _dot,
        "dot": _dot,
    }
    table |= {f"aten.{name}": operation for name, operation in named.items()}
    table |= {
        "aten.max.dim": _largest("max"),
        "aten.min.dim": _largest("min"),
        "aten.max.default": _reduction("max"),
        "aten.min.default": _reduction("min"),
        "aten._native_batch_norm_legit.no_stats": _batch_norm_of_instances,
        "getitem": _getitem,
    }
    return table


def _bitwise_not(lowering: Lowering, node: Node) -> Value:
    op = "not" if _dtype(node) == "bool" else "bit_not"
    return lowering.apply(op, [lowering.value(node.arguments[0])], _dtype(node), name=node.name)


OPERATIONS = _table()
"""By `aten.name` for every overload, or `aten.name.overload` for one."""
