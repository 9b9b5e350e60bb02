"""Smaller shapes for a problem that declares none for the CPU: its own integer constants, divided by two until it fits.

The constants are those assigned at module level and the literals in `get_inputs`, `get_init_inputs` and
`get_input_variants`. Equal numbers shrink alike, so that sizes which must agree keep agreeing; only even numbers above
`SMALLEST` are halved, so that kernel sizes, groups and heads stay as they are.
"""

from __future__ import annotations

import ast
import math
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

SMALLEST = 16
"""Numbers up to this are left alone: kernel sizes, strides, channels of images, heads."""
MOST_FLOPS = 60_000_000
"""Most floating-point operations of matrix products and convolutions in one forward pass."""
_FUNCTIONS = ("get_inputs", "get_init_inputs", "get_input_variants")


def shrink(source: str, elements: int) -> str | None:
    """Return `source` with constants small enough for `elements` in inputs, outputs and parameters together.

    The text is unchanged when it fits already; None when it can't be made to fit.
    """
    tree = ast.parse(source)
    literals = _literals(tree)
    sizes = {node.value: node.value for node in literals}
    frozen: set[int] = set()
    text = source
    for _ in range(200):
        measured = _measure(text)
        if measured is not None and measured[0] <= elements and measured[1] <= MOST_FLOPS:
            return text
        tried = max((v for v in sizes if sizes[v] > SMALLEST and v not in frozen), key=lambda v: sizes[v], default=None)
        if tried is None:
            return None
        before = sizes[tried]
        if before % 2:
            frozen.add(tried)
            continue
        sizes[tried] = before // 2
        smaller = _rewritten(tree, literals, sizes)
        if measured is not None and _measure(smaller) is None:
            sizes[tried] = before  # it ran before and does not now: this number means something else
            frozen.add(tried)
            continue
        text = smaller
    return None


def _literals(tree: ast.Module) -> list[ast.Constant]:
    places: list[ast.AST] = [
        node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
    ]
    places += [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS]
    found = []
    for place in places:
        for node in ast.walk(place):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value > SMALLEST:
                found.append(node)
    return found


def _rewritten(tree: ast.Module, literals: list[ast.Constant], sizes: dict[int, int]) -> str:
    originals = [node.value for node in literals]
    try:
        for node, value in zip(literals, originals, strict=True):
            node.value = sizes[value]  # type: ignore[index]
        return ast.unparse(tree)
    finally:
        for node, value in zip(literals, originals, strict=True):
            node.value = value


def _measure(source: str) -> tuple[int, int] | None:
    """Return elements and floating-point operations of one forward pass on meta tensors; None when it raises."""
    namespace: dict[str, Any] = {"__name__": "problem"}
    try:
        with torch.device("meta"), torch.no_grad():
            exec(compile(source, "problem.py", "exec"), namespace)
            arguments = namespace.get("get_init_inputs", list)()
            model = namespace["Model"](**arguments) if isinstance(arguments, dict) else namespace["Model"](*arguments)
            model = model.to("meta").eval()
            inputs = [pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), x) for x in namespace["get_inputs"]()]
            counter = FlopCounterMode(display=False)
            with counter:
                outputs = model(*inputs)
    except Exception:  # whatever the problem's code raises at these sizes
        return _count_inputs(namespace)
    tensors = [*pytree.tree_leaves(inputs), *pytree.tree_leaves(outputs), *model.state_dict().values()]
    elements = sum(math.prod(t.shape) for t in tensors if isinstance(t, torch.Tensor))
    return elements, int(counter.get_total_flops())


def _count_inputs(namespace: dict[str, Any]) -> tuple[int, int] | None:
    """Where the module can't run on meta tensors, count its inputs alone and run it on the CPU when they are small."""
    try:
        with torch.device("meta"):
            inputs = namespace["get_inputs"]()
        elements = sum(t.numel() for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
        if elements > 4_000_000:
            return elements, 0
        with torch.no_grad():
            arguments = namespace.get("get_init_inputs", list)()
            model = namespace["Model"](**arguments) if isinstance(arguments, dict) else namespace["Model"](*arguments)
            model.eval()(*namespace["get_inputs"]())
    except Exception:  # it does not run at all; the loader says why
        return None
    return elements + sum(t.numel() for t in model.state_dict().values()), 0
