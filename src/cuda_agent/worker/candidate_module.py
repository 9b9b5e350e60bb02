"""Loading `ModelNew`: a candidate written out from its record, its built extension, and the reference's weights."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cuda_agent.errors import CandidateError
from cuda_agent.records.candidate import Candidate

EXTENSION = "cuda_extension"


class NoModelNew(CandidateError):
    """`model_new.py` defines no class `ModelNew`."""


class ParametersDiffer(CandidateError):
    """The reference's state dict does not fit `ModelNew`; the text lists what is missing, unexpected, mis-shaped."""


def write_out(candidate: Candidate, folder: Path) -> None:
    """Write the candidate's files below `folder`, which must not exist."""
    folder.mkdir(mode=0o700)
    for name, text in candidate.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load_module(folder: Path, library: str, *, emulated: bool) -> ModuleType:
    """Import `folder/model_new.py` with the built extension importable as `cuda_extension`.

    On the emulated device the emulator must have been attached before.

    Raises:
        NoModelNew: the file has no such class.
        Exception: whatever importing the candidate raises.
    """
    if library:
        sys.modules[EXTENSION] = load_extension(library, emulated=emulated)
    sys.path.insert(0, str(folder))
    module = _import_file("model_new", str(folder / "model_new.py"))
    if not isinstance(getattr(module, "ModelNew", None), type):
        raise NoModelNew(
            "model_new.py was imported and defines no class ModelNew. Define `class ModelNew(torch.nn.Module)` with "
            "the same __init__ arguments as the problem's Model."
        )
    return module


def load_extension(library: str, *, emulated: bool) -> ModuleType:
    """Import the shared object at `library` as `cuda_extension`."""
    before = sys.getdlopenflags()
    # Deep binding makes the library's own dependency, the stand-in runtime, win over a real libcudart that
    # torch may have brought into the process.
    extra = os.RTLD_DEEPBIND if emulated else 0
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | extra)
    try:
        return _import_file(EXTENSION, library)
    finally:
        sys.setdlopenflags(before)


def construct(
    module: ModuleType, init_inputs: Sequence[Any] | Mapping[str, Any], *, device: str, training: bool
) -> torch.nn.Module:
    """Return `ModelNew(*init_inputs)` on `device` in the problem's mode, before any weights are loaded.

    Raises:
        NoModelNew: it is no `torch.nn.Module`.
        Exception: whatever the candidate raises.
    """
    model = module.ModelNew(**init_inputs) if isinstance(init_inputs, Mapping) else module.ModelNew(*init_inputs)
    if not isinstance(model, torch.nn.Module):
        raise NoModelNew(
            f"ModelNew(...) is a {type(model).__name__}; it must be a torch.nn.Module so that it can load weights."
        )
    return model.to(device).train(training)


def load_weights(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load the reference's `state`; hooks that translate names count.

    Strict but for one thing: buffers that only `model` has keep their values. They hold constants of its own, and
    what it derives from parameters into them is tried with other parameters later.

    Raises:
        ParametersDiffer: names or shapes don't fit.
    """
    try:
        left: Any = model.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:
        raise ParametersDiffer(_difference(model, state, str(error))) from error
    # A candidate's own load_state_dict may return nothing; it has then seen to its weights itself.
    unexpected = list(getattr(left, "unexpected_keys", ()))
    buffers = {name for name, _ in model.named_buffers()}
    missing = [name for name in getattr(left, "missing_keys", ()) if name in state or name not in buffers]
    if missing or unexpected:
        found = f"not loaded: {', '.join(missing)}; not taken: {', '.join(unexpected)}"
        raise ParametersDiffer(_difference(model, state, found))


def where(error: BaseException, folder: Path) -> str:
    """Return the innermost line of the candidate in the traceback: `model_new.py:12 in forward: y = f(x)`."""
    inside = str(folder) + os.sep
    found = ""
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(inside):
        return f"{error.filename.removeprefix(inside)}:{error.lineno}: {(error.text or '').strip()}"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(inside):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            found = f"{frame.filename.removeprefix(inside)}:{frame.lineno} in {frame.name}: {line}"
    return found


def _import_file(name: str, path: str) -> ModuleType:
    loader: Any = importlib.machinery.SourceFileLoader(name, path)
    if not path.endswith(".py"):
        loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _difference(model: torch.nn.Module, state: Mapping[str, torch.Tensor], error: str) -> str:
    own = model.state_dict()
    buffers = {name for name, _ in model.named_buffers()}
    missing = [f"{name} {_kind(value)}" for name, value in state.items() if name not in own]
    extra = [f"{name} {_kind(value)}" for name, value in own.items() if name not in state and name not in buffers]
    shaped = [
        f"{name} is {_kind(own[name])} and should be {_kind(value)}"
        for name, value in state.items()
        if name in own and _shape(own[name]) != _shape(value)
    ]
    parts = []
    if missing:
        parts.append(f"ModelNew lacks {'; '.join(missing)}")
    if extra:
        parts.append(f"ModelNew has what Model has not: {'; '.join(extra)}")
    if shaped:
        parts.append("; ".join(shaped))
    if not parts:
        parts.append(error.strip())
    text = ". ".join(parts)
    return (
        f"The reference's state_dict does not fit ModelNew: {text}. Give parameters and buffers the names and shapes "
        "that Model has (tensors derived from them: register_buffer(..., persistent=False)), or translate names in a "
        "load_state_dict pre-hook."
    )


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
