"""Tensor expressions without loops: what each element is, as arithmetic over strided references.

A reference addresses a contiguous source (an input, a stored intermediate, a reduction's result) by strides
over the expression's dimensions, so views, broadcasts and transposes cost nothing and disappear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """A size or stride: its number at the traced case, and how to write it so that other shapes work too.

    Two sizes are equal when they are so for every shape: the same fixed factor times the same varying sizes.
    """

    value: int = field(compare=False)
    fixed: int
    """Product of the factors that are the same for every shape."""
    varying: tuple[str, ...] = ()
    """Python texts of the factors that vary, such as `x.shape[0]`, sorted."""
    parts: tuple[str, ...] = field(default=(), compare=False)
    """Python texts whose product this is; a fixed factor may still be written `x.shape[1]`."""

    @staticmethod
    def of(value: int, text: str = "", *, varies: bool = False) -> Size:
        """Return a size, written as `text` if given; `varies` when other shapes have another number there."""
        if varies and value != 1:
            return Size(value, 1, (text,), (text,))
        return Size(value, value, (), (text or str(value),) if value != 1 else ())

    def __mul__(self, other: Size) -> Size:
        if self.value == 0 or other.value == 0:
            return ZERO
        varying = tuple(sorted(self.varying + other.varying))
        return Size(self.value * other.value, self.fixed * other.fixed, varying, self.parts + other.parts)

    @property
    def constant(self) -> bool:
        """Whether the traced number holds for every shape."""
        return not self.varying

    @property
    def text(self) -> str:
        """Python expression, such as `x.shape[0] * 4`."""
        return " * ".join(self.parts) or str(self.value)


ZERO = Size(0, 0, (), ("0",))
ONE = Size(1, 1)

Shape = tuple[Size, ...]


def product(sizes: Sequence[Size]) -> Size:
    """Return the number of elements of a shape."""
    result = ONE
    for size in sizes:
        result = result * size
    return result


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides in elements; a dimension of one element has stride 0."""
    strides: list[Size] = []
    running = ONE
    for size in reversed(shape):
        strides.append(ZERO if size.value == 1 else running)
        running = running * size
    return tuple(reversed(strides))


@dataclass(frozen=True, eq=False)
class Literal:
    """A number."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True, eq=False)
class Ref:
    """An element of a contiguous source, addressed by strides over the expression's dimensions."""

    source: str
    dtype: str
    shape: Shape
    strides: Shape
    offset: Size


@dataclass(frozen=True, eq=False)
class Extent:
    """A size as a number to compute with, such as the divisor of a mean, less a fixed amount."""

    size: Size
    less: int
    dtype: str


@dataclass(frozen=True, eq=False)
class Apply:
    """A scalar operation on elements at the same position."""

    op: str
    operands: tuple[Expression, ...]
    dtype: str
    parameters: tuple[float, ...] = ()


Expression = Literal | Extent | Ref | Apply

IOTA = "(position)"
"""A source whose element i is i: index arithmetic, masks and ranges are references to it."""


class CannotView(Exception):
    """A reshape that strides can't express; the value must be stored first."""


@dataclass(frozen=True)
class Tensor:
    """An expression with its shape."""

    expression: Expression
    shape: Shape

    @property
    def dtype(self) -> str:
        """torch's name of the element type, without the prefix."""
        return self.expression.dtype


@dataclass
class Arena:
    """Makes expressions such that equal ones are the same object, so that shared work is done once."""

    _known: dict[tuple[object, ...], Expression] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """Names for people, by identity of the expression; the first name given stays."""

    def literal(self, value: float | int | bool, dtype: str) -> Expression:
        """Return a number of the given type."""
        key = ("literal", repr(value), dtype)
        return self._intern(key, lambda: Literal(value, dtype))

    def extent(self, size: Size, dtype: str, less: int = 0) -> Expression:
        """Return a size as a number, less a fixed amount."""
        return self._intern(("extent", size, less, dtype), lambda: Extent(size, less, dtype))

    def ref(self, source: str, dtype: str, shape: Shape, strides: Shape, offset: Size = ZERO) -> Expression:
        """Return a strided reference."""
        key = ("ref", source, dtype, shape, strides, offset)
        return self._intern(key, lambda: Ref(source, dtype, shape, strides, offset))

    def apply(
        self, op: str, operands: Sequence[Expression], dtype: str, parameters: tuple[float, ...] = ()
    ) -> Expression:
        """Return an operation on elements."""
        key = ("apply", op, tuple(id(operand) for operand in operands), dtype, repr(parameters))
        return self._intern(key, lambda: Apply(op, tuple(operands), dtype, parameters))

    def source(self, name: str, dtype: str, shape: Shape) -> Tensor:
        """Return a whole contiguous source as a tensor."""
        return Tensor(self.ref(name, dtype, shape, contiguous_strides(shape)), shape)

    def name(self, tensor: Tensor, name: str) -> Tensor:
        """Suggest what a person would call the value."""
        self.names.setdefault(id(tensor.expression), name)
        return tensor

    def _intern(self, key: tuple[object, ...], make: Callable[[], Expression]) -> Expression:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
        return found

    # Views

    def permute(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return the tensor with its dimensions in another order."""

        def move(ref: Ref) -> Expression:
            strides = tuple(ref.strides[index] for index in order)
            shape = tuple(ref.shape[index] for index in order)
            return self.ref(ref.source, ref.dtype, shape, strides, ref.offset)

        shape = tuple(tensor.shape[index] for index in order)
        return Tensor(self.rewrite(tensor.expression, move), shape)

    def expand(self, tensor: Tensor, shape: Shape) -> Tensor:
        """Broadcast to `shape`, with new dimensions in front."""
        missing = len(shape) - len(tensor.shape)
        own = (ONE,) * missing + tensor.shape
        if all(a.value == b.value for a, b in zip(own, shape)) and not missing:
            return tensor

        def spread(ref: Ref) -> Expression:
            before = (ZERO,) * missing + ref.strides
            strides = tuple(
                ZERO if own[index].value == 1 and size.value != 1 else before[index] for index, size in enumerate(shape)
            )
            return self.ref(ref.source, ref.dtype, shape, strides, ref.offset)

        return Tensor(self.rewrite(tensor.expression, spread), shape)

    def index(self, tensor: Tensor, dimension: int, start: int, step: int, size: Size) -> Tensor:
        """Keep every `step`-th of the elements of one dimension, from `start`."""

        def cut(ref: Ref) -> Expression:
            stride = ref.strides[dimension]
            offset = Size.of(start) * stride
            strides = _replaced(ref.strides, dimension, stride * Size.of(step))
            shape = _replaced(ref.shape, dimension, size)
            return self.ref(ref.source, ref.dtype, shape, strides, _sum(ref.offset, offset))

        shape = _replaced(tensor.shape, dimension, size)
        return Tensor(self.rewrite(tensor.expression, cut), shape)

    def reshape(self, tensor: Tensor, shape: Shape) -> Tensor:
        """Return the elements in row-major order under another shape.

        Raises:
            CannotView: some reference would need more than strides.
        """

        def fold(ref: Ref) -> Expression:
            strides = _reshaped(ref.shape, ref.strides, shape)
            return self.ref(ref.source, ref.dtype, shape, strides, ref.offset)

        return Tensor(self.rewrite(tensor.expression, fold), shape)

    def rewrite(
        self,
        expression: Expression,
        leaf: Callable[[Ref], Expression],
        memo: dict[int, Expression] | None = None,
    ) -> Expression:
        """Return the expression with every reference replaced."""
        memo = {} if memo is None else memo
        found = memo.get(id(expression))
        if found is not None:
            return found
        result: Expression
        if isinstance(expression, Ref):
            result = leaf(expression)
        elif isinstance(expression, Apply):
            operands = [self.rewrite(operand, leaf, memo) for operand in expression.operands]
            result = self.apply(expression.op, operands, expression.dtype, expression.parameters)
            if id(expression) in self.names:
                self.names.setdefault(id(result), self.names[id(expression)])
        else:
            result = expression
        memo[id(expression)] = result
        return result


def references(expression: Expression) -> list[Ref]:
    """Return the distinct references below an expression, in order of appearance."""
    seen: set[int] = set()
    found: list[Ref] = []

    def visit(item: Expression) -> None:
        if id(item) in seen:
            return
        seen.add(id(item))
        if isinstance(item, Ref):
            found.append(item)
        elif isinstance(item, Apply):
            for operand in item.operands:
                visit(operand)

    visit(expression)
    return found


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that all broadcast to; of equal sizes the one with a text wins."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = []
    for position in range(-rank, 0):
        sizes = [shape[position] for shape in shapes if len(shape) >= -position]
        largest = max(size.value for size in sizes) if all(size.value for size in sizes) else 0
        wanted = [size for size in sizes if size.value == largest]
        result.append(next((size for size in wanted if not size.constant), wanted[0]))
    return tuple(result)


def _replaced(items: Shape, index: int, item: Size) -> Shape:
    return items[:index] + (item,) + items[index + 1 :]


def _sum(first: Size, second: Size) -> Size:
    if not first.value:
        return second
    if not second.value:
        return first
    if first.constant and second.constant:
        return Size.of(first.value + second.value)
    return Size.of(first.value + second.value, f"({first.text} + {second.text})", varies=True)


def _reshaped(old: Shape, strides: Shape, new: Shape) -> Shape:
    """Strides of a row-major reshape, or `CannotView`.

    Walks both shapes from the inside: a run of old dimensions that is contiguous within itself, or that does not
    move at all (all strides 0), can be cut up or merged freely.
    """
    if math.prod(size.value for size in old) == 0:
        return contiguous_strides(new)
    pairs = [(size, stride) for size, stride in zip(old, strides) if size.value != 1]
    runs: list[tuple[int, Size]] = []
    for size, stride in reversed(pairs):
        if runs:
            extent, inner = runs[-1]
            if stride.value == inner.value * extent:
                runs[-1] = (extent * size.value, inner)
                continue
        runs.append((size.value, stride))
    result: list[Size] = []
    position = 0
    used = ONE
    for size in reversed(new):
        if size.value == 1:
            result.append(ZERO)
            continue
        if position == len(runs):
            raise CannotView
        extent, inner = runs[position]
        if extent % (used.value * size.value):
            raise CannotView
        result.append(inner * used)
        used = used * size
        if used.value == extent:
            position, used = position + 1, ONE
    return tuple(reversed(result))
