"""Notices when a candidate replaces functions of the process that holds it.

Nothing that decides lives in this process, so such a patch can at most colour what it reports. Still, no honest candidate
makes one. A tripwire, not a wall: whoever knows it can step over it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

OURS = ("cuda_agent",)
NAMED = (
    (torch.utils._python_dispatch, "TorchDispatchMode"),
    (torch.nn, "Module"),
)
"""Classes of torch's that calls and their observation go through."""


class Tripwire:
    """Remembers the functions that this package's loaded modules, and a few classes of torch's, consist of."""

    def __init__(self) -> None:
        self._seen = {name: known for name, known in _functions() if known is not None}

    def changed(self) -> tuple[str, ...]:
        """Return the names of functions that are no longer what they were, or are gone."""
        now = dict(_functions())
        return tuple(name for name, known in self._seen.items() if now.get(name) != known)


def _functions() -> Iterator[tuple[str, Any]]:
    """Yield every function by name, with what identifies it and what it runs."""
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in OURS and isinstance(m, ModuleType)]
    for module in modules:
        for name, value in list(vars(module).items()):
            # What others define is looked at there; here it counts that the name still means it.
            yield f"{module.__name__}.{name}", _identity(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield from _methods(f"{module.__name__}.{name}", value)
    for module, name in NAMED:
        yield from _methods(f"{module.__name__}.{name}", getattr(module, name, None))


def _methods(name: str, kind: Any) -> Iterator[tuple[str, Any]]:
    for attribute, value in list(vars(kind).items()) if isinstance(kind, type) else ():
        if callable(value) or isinstance(value, staticmethod | classmethod | property):
            yield f"{name}.{attribute}", _identity(value)


def _identity(value: Any) -> tuple[int, int, int] | None:
    """Return what changes when a function is replaced or given other code; None for plain data, which may change."""
    if not (callable(value) or isinstance(value, staticmethod | classmethod | property | ModuleType)):
        return None
    inner = getattr(value, "__func__", value)
    code = id(inner.__code__) if isinstance(inner, FunctionType) else 0
    return id(value), id(inner), code
