"""Loads a problem file into this process: its module, its inputs for each case, and what is wrong with it.

The format is written down in `docs/problem-format.md`. Everything the file does may raise; it comes out as a
`ProblemError` that says what was asked, what was found and what to do.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import math
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuda_agent.errors import ProblemError
from cuda_agent.records.problem import Case, Precision, ProblemDescription, Tolerance, ValueSpec
from cuda_agent.worker.shrink import shrink

CPU_ELEMENTS = 250_000
"""Most elements of inputs and parameters together that the emulated device is asked to handle in one case."""
DECLARED_CPU_ELEMENTS = 50_000_000
"""The same for shapes that a problem declares for the CPU itself."""

BATCH_CASE = "batch "
"""Name of a derived case, followed by its batch size."""

_REQUIRED = ("Model", "get_inputs")


class LoadedProblem:
    """A problem in this process.

    `inputs` and `make_model` are deterministic in their seed, on one device.
    """

    precision: Precision
    tolerance: Tolerance | None
    training: bool

    def __init__(self, source: str, *, shapes: Literal["cpu", "gpu"], device: str = "cpu") -> None:
        """Load `source` with the shapes for the emulated device (`cpu`) or for a GPU.

        Raises:
            ProblemError: the file can't be used; one paragraph.
        """
        self.source = source
        self._device = device
        self._module = _load(source)
        self._shapes = shapes
        self.derived_shapes = False
        if shapes == "cpu" and not hasattr(self._module, "get_cpu_inputs"):
            smaller = shrink(source, CPU_ELEMENTS)
            if smaller is None:
                raise ProblemError(
                    "The problem was asked for at shapes small enough for the emulated device. Its own are larger, and "
                    "no smaller ones could be derived from the integer constants in the file. Add get_cpu_inputs() "
                    "(and get_cpu_init_inputs()) with small shapes, or judge on a CUDA device."
                )
            if smaller != source:
                self.derived_shapes = True
                self.source = smaller
                self._module = _load(smaller)
        prefix = "get_cpu_" if shapes == "cpu" and hasattr(self._module, "get_cpu_inputs") else "get_"
        self._init = getattr(self._module, f"{prefix}init_inputs", None) or getattr(
            self._module, "get_init_inputs", None
        )
        self._makers: dict[str, Callable[[], Any]] = {"default": getattr(self._module, f"{prefix}inputs")}
        self._makers.update(
            self._variants(getattr(self._module, f"{prefix}input_variants", None), f"{prefix}input_variants")
        )
        self.precision = self._read_precision()
        self.tolerance = self._read_tolerance()
        self.training = getattr(self._module, "TRAINING", False)
        if not isinstance(self.training, bool):
            raise ProblemError(f"TRAINING is {self.training!r}; it must be True or False.")

    @property
    def case_names(self) -> tuple[str, ...]:
        """The declared cases, `default` first."""
        return tuple(self._makers)

    def init_inputs(self) -> list[Any] | dict[str, Any]:
        """Return fresh arguments of `Model`: positional, or by keyword."""
        if self._init is None:
            return []
        value = self._guarded("get_init_inputs()", self._init)
        if isinstance(value, dict):
            return value
        if isinstance(value, list | tuple):
            return list(value)
        raise ProblemError(
            f"get_init_inputs() must return a list of Model's arguments (or a dict by keyword); it returned "
            f"{type(value).__name__}. Return [] when Model takes none."
        )

    def make_model(self, seed: int) -> torch.nn.Module:
        """Return `Model` on the device, constructed under `seed`, in the problem's mode."""
        arguments = self.init_inputs()
        self._seed(seed)

        def construct() -> Any:
            with torch.device(self._device):
                if isinstance(arguments, dict):
                    return self._module.Model(**arguments)
                return self._module.Model(*arguments)

        model = self._guarded("Model(...)", construct)
        if not isinstance(model, torch.nn.Module):
            raise ProblemError(
                f"Model must be a torch.nn.Module; Model(...) is a {type(model).__name__}. Derive it from that."
            )
        return model.to(self._device).train(self.training)

    def inputs(self, case: str, seed: int) -> list[Any]:
        """Return the inputs of a case, drawn under `seed`, tensors on the device.

        A name `batch N` gives the first N rows of the default case.
        """
        maker = self._makers.get(case)
        if maker is None and re.fullmatch(rf"{BATCH_CASE}\d+", case):
            rows = int(case.removeprefix(BATCH_CASE))
            return [_first_rows(value, rows) for value in self.inputs("default", seed)]
        if maker is None:
            raise ProblemError(f"The problem has no case {case!r}; it has {', '.join(self._makers)}.")
        self._seed(seed)

        def make() -> Any:
            with torch.device(self._device):
                return maker()

        value = self._guarded(f"the inputs of case {case!r}", make)
        if not isinstance(value, list | tuple):
            raise ProblemError(
                f"get_inputs() must return a list of forward's arguments; for case {case!r} it returned "
                f"{type(value).__name__}. Return [x] for a single tensor."
            )
        return [pytree.tree_map_only(torch.Tensor, self._placed, item) for item in value]

    def call(self, model: torch.nn.Module, inputs: list[Any]) -> Any:
        """Return `model(*inputs)` without gradients, as a problem's fault when it raises."""

        def forward() -> Any:
            with torch.no_grad():
                return model(*inputs)

        return self._guarded(f"forward() with {_summary(inputs)}", forward)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.to(self._device) if str(tensor.device) != self._device else tensor

    @staticmethod
    def _seed(seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))

    def _variants(self, maker: Callable[[], Any] | None, name: str) -> dict[str, Callable[[], Any]]:
        if maker is None:
            return {}
        self._seed(0)
        # Only counted here: entries that are callables make their tensors later, under a seed and on the device.
        with torch.device("meta" if self._shapes == "gpu" else "cpu"):
            listed = self._guarded(f"{name}()", maker)
        if isinstance(listed, dict):
            keys: Iterable[tuple[str, Any]] = ((str(key), key) for key in listed)
        elif isinstance(listed, list | tuple):
            keys = ((f"variant {index + 1}", index) for index in range(len(listed)))
        else:
            raise ProblemError(
                f"{name}() must return a list or dict whose entries are input lists or functions that return one; it "
                f"returned {type(listed).__name__}."
            )
        found: dict[str, Callable[[], Any]] = {}
        for label, key in keys:
            if label == "default":
                raise ProblemError(
                    f"{name}() has a case named 'default', which is the name of get_inputs()'s. Give it another name."
                )
            entry = listed[key]
            # Entries that are lists were drawn when the list was made: call the function again under the seed.
            found[label] = entry if callable(entry) else partial(_entry, maker, key)
        return found

    def _read_precision(self) -> Precision:
        value = getattr(self._module, "PRECISION", "fp32")
        for known in get_args(Precision):
            if value == known:
                precision: Precision = known
                return precision
        raise ProblemError(f"PRECISION is {value!r}; it must be one of {', '.join(get_args(Precision))}.")

    def _read_tolerance(self) -> Tolerance | None:
        value = getattr(self._module, "TOLERANCE", None)
        if value is None:
            return None
        if _is_bound(value):
            return Tolerance(rtol=float(value), atol=float(value))
        if isinstance(value, dict) and set(value) == {"rtol", "atol"} and all(map(_is_bound, value.values())):
            return Tolerance(rtol=float(value["rtol"]), atol=float(value["atol"]))
        raise ProblemError(f"TOLERANCE is {value!r}; it must be a number from 0, or a dict with such rtol and atol.")

    def _guarded(self, what: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except ProblemError:
            raise
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            _raise_problem(what, error)


def describe(source: str, *, gpu: bool = True) -> ProblemDescription:
    """Load a problem, run its reference once at CPU shapes, and return what was seen.

    Without `gpu` the cases for a GPU are left out, which saves the seconds that meta tensors cost at first.

    Raises:
        ProblemError: it can't be used.
    """
    problem = LoadedProblem(source, shapes="cpu")
    model = problem.make_model(0)
    cases = []
    for name in problem.case_names:
        inputs = problem.inputs(name, 0)
        elements = sum(tensor.numel() for tensor in _tensors(inputs))
        if elements > DECLARED_CPU_ELEMENTS:
            raise ProblemError(
                f"The CPU inputs of case {name!r} have {elements} elements, and the emulated device handles up to "
                f"{DECLARED_CPU_ELEMENTS}. Make get_cpu_inputs() smaller."
            )
        outputs = problem.call(model, inputs)
        if not _tensors(outputs):
            raise ProblemError(
                f"Model.forward must return a tensor (or a tuple, list or dict with tensors); it returned "
                f"{type(outputs).__name__}."
            )
        if name == "default":
            _check_deterministic(problem, model, outputs)
        origin: Literal["declared", "derived"] = "derived" if problem.derived_shapes else "declared"
        cases.append(Case(name=name, origin=origin, inputs=_specs(inputs), outputs=_specs(outputs)))
    if len(cases) == 1:
        cases += _batch_case(problem, model)
    gpu_cases: tuple[Case, ...] = ()
    if gpu:
        declared = LoadedProblem(source, shapes="gpu", device="meta")
        gpu_cases = _gpu_cases(declared, batched=any(case.name.startswith(BATCH_CASE) for case in cases))
    state = model.state_dict()
    init_inputs = problem.init_inputs()
    return ProblemDescription(
        precision=problem.precision,
        tolerance=problem.tolerance,
        cpu_cases=tuple(cases),
        gpu_cases=gpu_cases,
        cpu_source=problem.source if problem.derived_shapes else "",
        fixed_shape=len(cases) == 1,
        init_inputs=_specs(list(init_inputs.values()) if isinstance(init_inputs, dict) else init_inputs),
        parameter_count=sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor)),
        training=problem.training,
    )


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _entry(maker: Callable[[], Any], key: Any) -> Any:
    return maker()[key]


def _load(source: str) -> ModuleType:
    """Import the text as a module, from a file so that tracebacks and `inspect` work."""
    folder = Path(tempfile.mkdtemp(prefix="problem-"))
    file = folder / "problem.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("problem", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["problem"] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise ProblemError(
            f"The problem imports {error.name}, which is not installed here (problem.py:{_line(error, file)}). "
            "Install it, or write the problem with torch alone."
        ) from error
    except (Exception, SystemExit) as error:
        _raise_problem("importing the problem", error)
    for name in _REQUIRED:
        if not hasattr(module, name):
            close = difflib.get_close_matches(name, vars(module), 1)
            hint = f" (it has {close[0]})" if close else ""
            raise ProblemError(
                f"The problem must define Model, get_inputs() and get_init_inputs(); {name} is missing{hint}. Add it."
            )
    if not (inspect.isclass(module.Model) and issubclass(module.Model, torch.nn.Module)):
        raise ProblemError("Model must be a class derived from torch.nn.Module; it is something else. Derive it.")
    return module


def _raise_problem(what: str, error: BaseException) -> NoReturn:
    line = _line(error, None)
    place = f" at problem.py:{line}" if line else ""
    what = what if what.partition(" ")[0].endswith(")") else what[0].upper() + what[1:]
    text = str(error).strip().replace("\n", " ")[:600]
    raise ProblemError(
        f"{what} raised {type(error).__name__}{place}: {text.rstrip('.')}. Fix the problem file."
    ) from error


def _line(error: BaseException, file: Path | None) -> int:
    """Return the innermost line of the problem file in a traceback, 0 when there is none."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    lines = [
        frame.lineno or 0
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith("/problem.py") and (file is None or frame.filename == str(file))
    ]
    return lines[-1] if lines else 0


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _specs(value: Any) -> tuple[ValueSpec, ...]:
    return tuple(_spec(leaf) for leaf in pytree.tree_leaves(value))


def _spec(value: Any) -> ValueSpec:
    if isinstance(value, torch.Tensor):
        return ValueSpec(kind="tensor", shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))
    return ValueSpec(kind="value", dtype=type(value).__name__, text=repr(value)[:200])


def _summary(inputs: list[Any]) -> str:
    parts = [f"{s.dtype}{list(s.shape)}" if s.kind == "tensor" else s.text for s in _specs(inputs)]
    return ", ".join(parts) or "no inputs"


def _first_rows(value: Any, rows: int) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[:rows].contiguous(), value)


def _check_deterministic(problem: LoadedProblem, model: torch.nn.Module, first: Any) -> None:
    inputs = problem.inputs("default", 0)
    torch.manual_seed(12345)  # another state than the one that drawing the inputs leaves
    again = problem.call(model, inputs)
    pairs = zip(_tensors(first), _tensors(again), strict=True)
    if any(a.shape != b.shape or not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs):
        raise ProblemError(
            "Model.forward gives different results for the same inputs, so there is nothing to verify against. Remove "
            "the randomness (dropout in train mode, torch.rand in forward)."
        )


def _batch_case(problem: LoadedProblem, model: torch.nn.Module) -> list[Case]:
    """Return the default case with fewer rows, where the reference treats rows independently; else nothing."""
    inputs = problem.inputs("default", 1)
    tensors = _tensors(inputs)
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) != 1 or (batch := sizes.pop()) < 2:
        return []
    rows = max(1, batch - 1 if batch < 8 else (batch * 3 // 4) | 1)
    try:
        with torch.no_grad():
            whole = _tensors(model(*inputs))
            part_inputs = [_first_rows(value, rows) for value in inputs]
            part = _tensors(model(*part_inputs))
    except Exception:  # whatever the reference raises: it does not take another batch size
        return []
    same = len(whole) == len(part) and all(
        w.dim() > 0
        and w.shape[0] == batch
        and p.shape == (rows, *w.shape[1:])
        and torch.allclose(w[:rows].double(), p.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
        for w, p in zip(whole, part, strict=True)
    )
    if not same:
        return []
    return [Case(name=f"{BATCH_CASE}{rows}", origin="derived", inputs=_specs(part_inputs), outputs=_specs(part))]


def _gpu_cases(problem: LoadedProblem, *, batched: bool) -> tuple[Case, ...]:
    """Return the cases for a GPU, found without memory on meta tensors where the problem allows it."""
    cases = []
    try:
        model: torch.nn.Module | None = problem.make_model(0)
    except (ProblemError, MemoryError, torch.OutOfMemoryError):
        model = None
    for name in problem.case_names:
        inputs = _on_meta(partial(problem.inputs, name, 0))
        outputs = None if model is None or inputs is None else _on_meta(partial(problem.call, model, inputs))
        specs = [() if value is None else _specs(value) for value in (inputs, outputs)]
        cases.append(Case(name=name, origin="declared", inputs=specs[0], outputs=specs[1]))
    if batched and len(cases) == 1:
        sizes = {spec.shape[0] for spec in cases[0].inputs if spec.kind == "tensor" and spec.shape}
        if len(sizes) == 1 and (batch := sizes.pop()) > 1:
            rows = max(1, batch - 1 if batch < 8 else (batch * 3 // 4) | 1)
            inputs = [_first_rows_spec(spec, rows) for spec in cases[0].inputs]
            outputs = [_first_rows_spec(spec, rows) for spec in cases[0].outputs]
            cases.append(
                Case(name=f"{BATCH_CASE}{rows}", origin="derived", inputs=tuple(inputs), outputs=tuple(outputs))
            )
    return tuple(cases)


def _first_rows_spec(spec: ValueSpec, rows: int) -> ValueSpec:
    if spec.kind != "tensor" or not spec.shape:
        return spec
    return ValueSpec(kind="tensor", shape=(rows, *spec.shape[1:]), dtype=spec.dtype)


def _on_meta(action: Callable[[], Any]) -> Any:
    """Return what `action` gives on meta tensors, None where the problem's code needs values."""
    try:
        return action()
    except (ProblemError, MemoryError, torch.OutOfMemoryError):
        return None
