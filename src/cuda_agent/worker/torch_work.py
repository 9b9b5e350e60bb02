"""Notes what torch itself computes while a candidate runs: by operator as dispatched, whatever spelling called it.

`x @ w`, `torch.ops.aten.mm`, `at::mm` in C++ and a bound method are one and the same here. Making, viewing and copying
tensors is no computation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_agent.records.verification import TorchOperator

GLUE = frozenset(
    {
        # memory
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "zeros",
        "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor",
        "fill_", "zero_", "resize_", "set_", "record_stream", "is_pinned", "_pin_memory",
        # copies, with a change of layout or dtype
        "clone", "copy_", "_to_copy", "contiguous", "constant_pad_nd", "lift_fresh_copy",
        # what the host asks about a tensor
        "_local_scalar_dense", "equal", "is_same_size", "sym_size", "sym_numel", "sym_stride",
    }
)  # fmt: skip
"""Names of ATen operators, without overload, that compute nothing."""


class TorchWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, adds up the elements that torch's own operators read or write, whichever are more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._elements: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator and note it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in GLUE and not func.is_view:
            read = _elements((args, kwargs))
            self._elements[name] = self._elements.get(name, 0) + max(read, _elements(result))
        return result

    def take(self) -> tuple[TorchOperator, ...]:
        """Return what was noted, the most first, and forget it."""
        noted = sorted(self._elements.items(), key=lambda pair: -pair[1])
        self._elements = {}
        return tuple(TorchOperator(name=name, elements=elements) for name, elements in noted)


def _elements(value: Any) -> int:
    """Return the size of the largest tensor in a structure."""
    leaves = pytree.tree_leaves(value)
    return max((leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)), default=0)
