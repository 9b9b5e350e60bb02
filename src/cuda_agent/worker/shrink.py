"""Smaller shapes for a problem that declares none for the CPU: its own integer constants, divided by two until it fits.

The constants are those assigned at module level and the literals in `get_inputs`, `get_init_inputs` and
`get_input_variants`. Equal numbers shrink alike, so that sizes which must agree keep agreeing; only even numbers above
`SMALLEST` are halved, so that kernel sizes, groups and heads stay as they are.
"""

from __future__ import annotations

import ast
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

SMALLEST = 16
"""Numbers up to this are left alone: kernel sizes, strides, channels of images, heads."""
MOST_FLOPS = 60_000_000
"""Most floating-point operations of matrix products and convolutions in one forward pass."""
LONGEST_FORWARD_S = 0.1
"""Longest forward pass, on this machine's cores, that counts as small."""
MOST_REAL_ELEMENTS = 4_000_000
"""Most elements of inputs with which a module that can't run on meta tensors is tried on the CPU."""
_FUNCTIONS = ("get_inputs", "get_init_inputs", "get_input_variants")


def shrink(source: str, elements: int) -> str | None:
    """Return `source` with constants small enough for `elements` in inputs, outputs and parameters together.

    The text is unchanged when it fits already, or when it does not run at all (running it says why); None when it
    can't be made to fit. Lines keep their numbers.
    """
    if _runs_small(source, elements):
        return source
    literals = _literals(ast.parse(source))
    sizes = {value: value for _, value in literals}
    frozen: set[int] = set()
    text = source
    for _ in range(200):
        measured = _measure(text)
        if measured is None or (measured.elements <= elements and measured.flops <= MOST_FLOPS):
            return text
        tried = max((v for v in sizes if sizes[v] > SMALLEST and v not in frozen), key=lambda v: sizes[v], default=None)
        if tried is None:
            return None
        before = sizes[tried]
        if before % 2:
            frozen.add(tried)
            continue
        sizes[tried] = before // 2
        smaller = _rewritten(source, literals, sizes)
        after = _measure(smaller)
        if after is None or (measured.ran and not after.ran):
            sizes[tried] = before  # it ran before and does not now: this number means something else
            frozen.add(tried)
            continue
        text = smaller
    return None


class _TooLarge(Exception):
    """More elements than allowed were about to be allocated."""


class _Counting(TorchFunctionMode):
    """Counts the elements of every tensor a function makes, and stops before there are too many.

    Sizes are looked at before the call, so that a problem of many gigabytes costs nothing.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        if getattr(function, "__name__", "") in _FACTORIES:
            size = keywords.get("size", arguments)
            numbers = [n for part in size for n in (part if isinstance(part, list | tuple) else (part,))]
            self._left -= math.prod(n for n in numbers if type(n) is int and n > 0)
            if self._left < 0:
                raise _TooLarge
        result = function(*arguments, **keywords)
        if getattr(function, "__name__", "") in _PRODUCTS and isinstance(result, torch.Tensor):
            # A bound on the work of products and convolutions: every output element reads one operand's rows.
            self._left -= result.numel()
            if self._left < 0:
                raise _TooLarge
        return result


_FACTORIES = frozenset(
    ["empty", "rand", "randn", "randint", "zeros", "ones", "full", "arange", "linspace", "eye", "normal", "randperm"]
)
_PRODUCTS = frozenset(
    ["matmul", "linear", "bmm", "mm", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention", "einsum"]
)


def _runs_small(source: str, elements: int) -> bool:
    """Whether the problem runs for real within `elements` and `MOST_FLOPS`-like work, found without meta tensors.

    Meta tensors cost seconds the first time in a process; most files that a person tries are small already.
    """
    namespace: dict[str, Any] = {"__name__": "problem"}
    try:
        with _Counting(elements), torch.no_grad():
            exec(compile(source, "problem.py", "exec"), namespace)
            model = _model(namespace).eval()
            inputs = namespace["get_inputs"]()
            started = time.monotonic()
            model(*inputs)
        return time.monotonic() - started < LONGEST_FORWARD_S
    except Exception:  # too large, or it does not run; measured the slow way then
        return False


@dataclass(frozen=True)
class _Measured:
    elements: int
    """Of inputs, outputs and parameters; of the inputs alone when the module did not run."""
    flops: int
    ran: bool


def _literals(tree: ast.Module) -> list[tuple[ast.Constant, int]]:
    """Return the integer literals that may be sizes, with their values, last in the text first."""
    places: list[ast.AST] = [
        node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
    ]
    places += [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS]
    found = [
        (node, node.value)
        for place in places
        for node in ast.walk(place)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > SMALLEST
    ]
    return sorted(found, key=lambda item: (item[0].lineno, item[0].col_offset), reverse=True)


def _rewritten(source: str, literals: list[tuple[ast.Constant, int]], sizes: dict[int, int]) -> str:
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for node, value in literals:
        if node.end_col_offset is not None:
            line = lines[node.lineno - 1]
            number = str(sizes[value]).encode()
            lines[node.lineno - 1] = line[: node.col_offset] + number + line[node.end_col_offset :]
    return b"".join(lines).decode()


def _measure(source: str) -> _Measured | None:
    """Run the problem on meta tensors and count; None when not even its inputs can be made."""
    namespace: dict[str, Any] = {"__name__": "problem"}
    try:
        with torch.device("meta"), torch.no_grad():
            exec(compile(source, "problem.py", "exec"), namespace)
            made = namespace["get_inputs"]()
            inputs = [pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), value) for value in made]
    except Exception:  # whatever the problem's code raises
        return None
    counted = sum(tensor.numel() for tensor in pytree.tree_leaves(inputs) if isinstance(tensor, torch.Tensor))
    try:
        with torch.device("meta"), torch.no_grad():
            model = _model(namespace).to("meta").eval()
            counter = FlopCounterMode(display=False)
            with counter:
                outputs = model(*inputs)
        tensors = [*pytree.tree_leaves(outputs), *model.state_dict().values()]
        counted += sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
        return _Measured(counted, int(counter.get_total_flops()), ran=True)
    except Exception:  # code that needs values can't run on meta tensors; small inputs are tried for real
        pass
    if counted > MOST_REAL_ELEMENTS:
        return _Measured(counted, 0, ran=False)
    try:
        with torch.no_grad():
            model = _model(namespace).eval()
            model(*namespace["get_inputs"]())
        return _Measured(counted + sum(tensor.numel() for tensor in model.state_dict().values()), 0, ran=True)
    except Exception:  # it does not run at these sizes
        return _Measured(counted, 0, ran=False)


def _model(namespace: dict[str, Any]) -> torch.nn.Module:
    arguments = namespace.get("get_init_inputs", list)()
    model: torch.nn.Module = (
        namespace["Model"](**arguments) if isinstance(arguments, dict) else namespace["Model"](*arguments)
    )
    return model
