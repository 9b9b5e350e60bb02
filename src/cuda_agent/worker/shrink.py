"""Smaller shapes for a problem that declares none for the CPU: its own integer constants, divided by two until it fits.

The constants are those assigned at module level and the literals in `get_inputs`, `get_init_inputs` and
`get_input_variants`. Equal numbers shrink alike, so that sizes which must agree keep agreeing; only even numbers above
`SMALLEST` are halved, so that kernel sizes, groups and heads stay as they are.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

SMALLEST = 16
"""Numbers up to this are left alone: kernel sizes, strides, channels of images, heads."""
MOST_FLOPS = 60_000_000
"""Most floating-point operations of matrix products and convolutions in one forward pass."""
MOST_REAL_ELEMENTS = 4_000_000
"""Most elements of inputs with which a module that can't run on meta tensors is tried on the CPU."""
_FUNCTIONS = ("get_inputs", "get_init_inputs", "get_input_variants")


def shrink(source: str, elements: int) -> str | None:
    """Return `source` with constants small enough for `elements` in inputs, outputs and parameters together.

    The text is unchanged when it fits already, or when it does not run at all (running it says why); None when it
    can't be made to fit. Lines keep their numbers.
    """
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
