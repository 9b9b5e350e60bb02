"""The process that holds the problem: makes weights and inputs, runs the reference and its float64 oracle.

Expected values are computed after the candidate has delivered its result of the same trial, from inputs made anew
from the seed, so that neither a changed handover file nor a look into this process's files helps anybody.
"""

from __future__ import annotations

import copy
import socket
import time
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import torch

from cuda_agent.errors import ProblemError
from cuda_agent.records import codec
from cuda_agent.records.channel import Channel
from cuda_agent.records.verification import (
    Expect,
    Expected,
    InputsMade,
    MakeInputs,
    MakeWeights,
    OutputStats,
    Quit,
    ReferenceCommand,
    ReferenceFailed,
    ReferenceReady,
    ReferenceRequest,
    TensorFile,
    Values,
    WeightsMade,
)
from cuda_agent.worker import distributions, values
from cuda_agent.worker.problem_module import LoadedProblem

CHUNK = 1 << 24
"""Elements compared at a time."""
HALF_SIZE_FROM = 1 << 26
"""Elements from which on expected values are written as float32: their rounding, 6e-8, is far below any bound."""
GENERATOR_STATE = 20
"""Seed of torch's generators before every run of the reference."""

AMPLIFYING = ("constant rows",)
"""Distributions on which a reference may be exact by luck where equally good arithmetic is not: a norm of a row without
spread divides the mean's rounding error by sqrt(epsilon)."""

_Stage = Literal["load", "weights", "inputs", "run"]


def main(folder: Path, channel: socket.socket) -> None:
    """Serve `ReferenceCommand`s until told to quit or until the problem fails."""
    request = codec.read(folder / "request.json", ReferenceRequest)
    torch.backends.cuda.matmul.allow_tf32 = request.matmul_tf32
    torch.backends.cudnn.allow_tf32 = request.cudnn_tf32
    _Session(request, Channel(channel)).serve()


class _Session:
    def __init__(self, request: ReferenceRequest, link: Channel) -> None:
        self._request = request
        self._link = link
        self._stage: _Stage = "load"
        self._model: torch.nn.Module | None = None
        self._weights: dict[int, dict[str, torch.Tensor]] = {}
        self._loaded = -1
        self._command: MakeInputs | None = None
        self._made = 0
        self._no_oracle_why = "" if request.oracle else "this protocol compares with the reference itself"

    def serve(self) -> None:
        try:
            self._problem = LoadedProblem(
                self._request.source, shapes=self._request.shapes, device=self._request.device
            )
            init_inputs = values.write_values(
                self._problem.init_inputs(), Path(self._request.handover), "init", pickled=True
            )
            self._link.send(ReferenceReady(init_inputs=init_inputs, training=self._problem.training))
            while True:
                command: ReferenceCommand = self._link.receive(ReferenceCommand)
                if isinstance(command, Quit):
                    return
                if isinstance(command, MakeWeights):
                    self._link.send(self._make_weights(command))
                elif isinstance(command, MakeInputs):
                    self._link.send(self._make_inputs(command))
                elif isinstance(command, Expect):
                    self._link.send(self._expect(command))
        except (Exception, SystemExit) as error:
            text = str(error) if isinstance(error, ProblemError) else f"{type(error).__name__}: {error}"
            short = isinstance(error, torch.OutOfMemoryError | MemoryError)
            self._link.send(ReferenceFailed(stage=self._stage, message=text[:4000], out_of_memory=short))

    # --- weights ---

    def _make_weights(self, command: MakeWeights) -> WeightsMade:
        self._stage = "weights"
        if self._model is None:
            self._model = self._problem.make_model(command.seed)
        state = {
            name: value.detach().clone()
            for name, value in self._model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        if 0 in self._weights:
            state = {name: value.clone() for name, value in self._weights[0].items()}
        changed = self._changeable(state)
        if command.number > 0:
            _rerandomise(state, changed, self._twins(), command.seed)
        self._weights[command.number] = state
        folder = Path(self._request.handover)
        files = [
            values.write_tensor(value, folder / f"weights-{command.number}-{index}.bin", shared=True)
            for index, value in enumerate(state.values())
        ]
        return WeightsMade(number=command.number, names=tuple(state), tensors=tuple(files), parameters=len(changed))

    def _changeable(self, state: dict[str, torch.Tensor]) -> list[str]:
        """Parameters and running statistics; other buffers (masks, tables) may be part of the problem's meaning."""
        assert self._model is not None
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        return [
            name
            for name, value in state.items()
            if value.is_floating_point() and (name in parameters or name.endswith(("running_mean", "running_var")))
        ]

    def _twins(self) -> dict[str, str]:
        """For a name whose tensor is also known by an earlier name (tied weights): that name."""
        assert self._model is not None
        first: dict[tuple[object, ...], str] = {}
        twins = {}
        for name, value in self._model.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor) and value.numel():
                place = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
                if first.setdefault(place, name) != name:
                    twins[name] = first[place]
        return twins

    def _load(self, number: int) -> torch.nn.Module:
        assert self._model is not None
        # In training mode every call changes buffers, so they are put back each time.
        if number != self._loaded or self._problem.training:
            self._model.load_state_dict(self._weights[number], strict=False)
            self._loaded = number
        return self._model

    # --- inputs ---

    def _make_inputs(self, command: MakeInputs) -> InputsMade:
        self._stage = "inputs"
        inputs, applied = self._inputs(command)
        _, tensors = values.flatten(inputs, pickled=False)
        self._command = command
        self._made = _checksum(tensors)
        written = values.write_values(
            inputs, Path(self._request.handover), f"{command.trial}", pickled=True, shared=True
        )
        stats: tuple[OutputStats, ...] = ()
        sizes: tuple[int, ...] = ()
        raised = ""
        if applied and command.distribution != "as given":
            self._stage = "run"
            try:
                ran = self._run(command, inputs)
            except (ProblemError, ArithmeticError, RuntimeError, ValueError, IndexError) as error:
                # Changed inputs may lie outside what the problem is defined on; the gate drops the trial.
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raised = f"{type(error).__name__}: {error}"[:1000]
            else:
                stats = ran.stats
                sizes = tuple(tensor.numel() * tensor.element_size() for tensor in ran.outputs)
        del inputs, tensors
        self._free()
        return InputsMade(
            trial=command.trial,
            applied=applied,
            raised=raised,
            inputs=written,
            output_bytes=sizes,
            stats=stats,
        )

    def _inputs(self, command: MakeInputs) -> tuple[list[Any], bool]:
        inputs = self._problem.inputs(command.case, command.seed)
        tree, tensors = values.flatten(inputs, pickled=True)
        # Expanded inputs share elements, which can't be changed one by one.
        tensors = [tensor.contiguous() if 0 in tensor.stride() else tensor for tensor in tensors]
        applied = distributions.change(tensors, command.distribution, command.seed)
        return values.rebuild(tree, tensors), applied

    # --- expected values ---

    def _expect(self, command: Expect) -> Expected:
        self._stage = "run"
        assert self._command is not None
        inputs, _ = self._inputs(self._command)
        _, tensors = values.flatten(inputs, pickled=False)
        if _checksum(tensors) != self._made:
            raise ProblemError(
                "get_inputs() gives other values under the same seed. Use torch's, numpy's or Python's own random "
                "functions in it, or a fixed generator."
            )
        ran = self._run(self._command, inputs)
        random = False
        if command.check_random:
            again, _ = self._inputs(self._command)
            random = self._differs(ran, again)
        folder = Path(self._request.private)
        files = [
            values.write_tensor(tensor, folder / f"{command.trial}-{index}.bin", shared=True)
            for index, tensor in enumerate(ran.expected)
        ]
        alternatives = [
            None
            if tensor is None
            else values.write_tensor(tensor, folder / f"{command.trial}-{index}-alternative.bin", shared=True)
            for index, tensor in enumerate(ran.alternatives)
        ]
        shapes = [
            TensorFile(
                file=file.file,
                dtype=values.dtype_name(output.dtype),
                shape=tuple(output.shape),
                on_device=file.on_device,
            )
            for file, output in zip(files, ran.outputs, strict=True)
        ]
        reply = Expected(
            trial=command.trial,
            outputs=Values(tree=ran.tree, tensors=tuple(shapes)),
            file_dtypes=tuple(file.dtype for file in files),
            alternatives=tuple(alternatives),
            stats=ran.stats,
            oracle="reference" if self._no_oracle_why else "float64",
            no_oracle_why=self._no_oracle_why,
            changed_inputs=ran.changed_inputs,
            shared_inputs=ran.shared_inputs,
            random=random,
            seconds=ran.seconds,
        )
        del ran, inputs, tensors
        self._free()
        return reply

    def _run(self, command: MakeInputs, inputs: list[Any]) -> _Ran:
        """Run oracle and reference on `inputs`, which the reference may change."""
        model = self._load(command.weights)
        _, tensors = values.flatten(inputs, pickled=False)
        oracle = None if self._no_oracle_why else self._oracle(model, inputs)
        model = self._load(command.weights)
        before = [_checksum([tensor]) for tensor in tensors]
        result, seconds = _call(model, inputs)
        tree, outputs = values.flatten(result, pickled=False)
        if not outputs:
            raise ProblemError("Model.forward returned no tensor, so there is nothing to compare.")
        ran = _Ran()
        ran.tree = tree
        ran.outputs = [output.detach() for output in outputs]
        ran.seconds = seconds
        ran.changed_inputs = tuple(i for i, tensor in enumerate(tensors) if _checksum([tensor]) != before[i])
        ran.shared_inputs = values.shared_memory(outputs, tensors)
        if oracle is not None and [o.shape for o in oracle] != [o.shape for o in ran.outputs]:
            oracle, self._no_oracle_why = None, "the reference returns other shapes in float64"
        pairs = [
            _expected(output, None if oracle is None else oracle[index]) for index, output in enumerate(ran.outputs)
        ]
        ran.expected = [pair[0] for pair in pairs]
        ran.alternatives = [pair[1] for pair in pairs]
        ran.stats = tuple(pair[2] for pair in pairs)
        if command.distribution in AMPLIFYING and oracle is not None:
            moved = self._oracle(self._load(command.weights), _moved(inputs, command.seed))
            if moved is not None:
                ran.stats = tuple(map(_with_sensitivity, ran.stats, moved, oracle))
        return ran

    def _oracle(self, model: torch.nn.Module, inputs: list[Any]) -> list[torch.Tensor] | None:
        """Return the outputs in float64; None, with the reason kept, when the reference can't run so."""
        tree, tensors = values.flatten(inputs, pickled=True)
        wide = [tensor.to(_wide(tensor.dtype), copy=True) for tensor in tensors]
        default = torch.get_default_dtype()
        try:
            # Tensors that forward makes itself (zeros, arange) take the default dtype.
            torch.set_default_dtype(torch.float64)
            doubled = copy.deepcopy(model).double()
            result, _ = _call(doubled, values.rebuild(tree, wide))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # anything a module may raise when its dtypes are forced
            self._no_oracle_why = f"the reference does not run in float64: {type(error).__name__}: {error}"[:500]
            return None
        finally:
            torch.set_default_dtype(default)
        return [output.detach() for output in values.flatten(result, pickled=False)[1]]

    def _differs(self, ran: _Ran, inputs: list[Any]) -> bool:
        model = self._load(self._command.weights if self._command is not None else 0)
        result, _ = _call(model, inputs, state=GENERATOR_STATE + 1)
        _, outputs = values.flatten(result, pickled=False)
        for first, second in zip(ran.outputs, outputs, strict=True):
            if first.shape != second.shape:
                return True
            if not first.is_floating_point() and not first.is_complex():
                if not torch.equal(first, second):
                    return True
                continue
            # Atomics make bits differ; random numbers make values differ.
            if not torch.allclose(first, second, rtol=1e-2, atol=1e-2 * _rms(first), equal_nan=True):
                return True
        return False

    def _free(self) -> None:
        if self._request.device.startswith("cuda"):
            torch.cuda.empty_cache()


class _Ran:
    """What one run of reference and oracle gave."""

    tree: Any
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor]
    alternatives: list[torch.Tensor | None]
    stats: tuple[OutputStats, ...]
    changed_inputs: tuple[int, ...]
    shared_inputs: tuple[tuple[int, int], ...]
    seconds: float


def _call(model: torch.nn.Module, inputs: list[Any], state: int = GENERATOR_STATE) -> tuple[Any, float]:
    torch.manual_seed(state)
    started = time.monotonic()
    with torch.no_grad():
        result = model(*inputs)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return result, time.monotonic() - started


def _moved(inputs: list[Any], seed: int) -> list[Any]:
    """Return float64 copies of the inputs, every float moved up or down by one rounding step of float32."""
    tree, tensors = values.flatten(inputs, pickled=True)
    generator = torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
    step = torch.finfo(torch.float32).eps
    moved = []
    for tensor in tensors:
        wide = tensor.to(_wide(tensor.dtype), copy=True)
        if wide.is_floating_point():
            signs = torch.randint(0, 2, wide.shape, generator=generator, device=wide.device, dtype=torch.int8)
            wide.mul_(1 + step * (2 * signs - 1).double())
        moved.append(wide)
    return cast("list[Any]", values.rebuild(tree, moved))


def _with_sensitivity(stats: OutputStats, moved: torch.Tensor, oracle: torch.Tensor) -> OutputStats:
    if not stats.floating or stats.rms == 0 or moved.shape != oracle.shape:
        return stats
    true = _real(oracle).double()
    change = (_real(moved).double() - true).abs() / (true.abs() + stats.rms)
    change = change[torch.isfinite(change)]
    return msgspec.structs.replace(stats, sensitivity=float(change.max()) if change.numel() else None)


def _rerandomise(state: dict[str, torch.Tensor], names: list[str], twins: dict[str, str], seed: int) -> None:
    """Change parameters in place so that none of them is neutral: no zero biases, no unit scales.

    Every element is multiplied by a number from [0.5, 1.5), which keeps signs and sizes (a variance stays
    positive); tensors that are all zero get numbers from a normal distribution of width 0.1 instead. Tied weights
    stay equal.
    """
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        value = state[name]
        if name in twins:
            value.copy_(state[twins[name]])
        elif bool((value == 0).all()):
            noise = torch.randn(value.shape, generator=generator) * 0.1
            value.copy_(noise)
        else:
            factor = torch.rand(value.shape, generator=generator) + 0.5
            value.mul_(factor.to(device=value.device, dtype=value.dtype))


def _expected(
    output: torch.Tensor, oracle: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, OutputStats]:
    """Merge reference and oracle into what is expected: the oracle's value, or the reference's NaN and infinity."""
    floating = output.is_floating_point() or output.is_complex()
    if not floating:
        other = None
        if oracle is not None and oracle.dtype == output.dtype and not torch.equal(oracle, output):
            other = oracle
        stats = OutputStats(
            dtype=values.dtype_name(output.dtype),
            shape=tuple(output.shape),
            floating=floating,
            rms=0.0,
            non_finite=0,
            overflowed=0,
            max_scaled_error=None,
            relative_rms_error=None,
        )
        return output, other, stats
    got = _real(output)
    wide = torch.float32 if got.numel() >= HALF_SIZE_FROM else torch.float64
    expected = torch.empty(got.shape, dtype=wide, device=got.device)
    flat_got, flat_expected = got.reshape(-1), expected.view(-1)
    flat_oracle = None if oracle is None else _real(oracle).reshape(-1)
    non_finite = overflowed = finite = 0
    squares = 0.0
    for start in range(0, flat_got.numel(), CHUNK):
        # Widened before anything else: torch lacks isfinite and arithmetic for the 8-bit types.
        value = flat_got[start : start + CHUNK].double()
        fine = torch.isfinite(value)
        if flat_oracle is not None:
            true = flat_oracle[start : start + CHUNK].double()
            reachable = torch.isfinite(true.to(output.dtype).double() if not output.is_complex() else true)
            overflowed += int((~fine & reachable).sum())
            value = torch.where(fine & torch.isfinite(true), true, value)
        flat_expected[start : start + CHUNK] = value
        kept = value[fine]
        squares += float(kept.square().sum())
        finite += kept.numel()
        non_finite += value.numel() - kept.numel()
    rms = (squares / finite) ** 0.5 if finite else 0.0
    scaled, wrong = 0.0, 0.0
    if flat_oracle is not None:
        for start in range(0, flat_got.numel(), CHUNK):
            value = flat_got[start : start + CHUNK].double()
            fine = torch.isfinite(value)
            true = flat_expected[start : start + CHUNK][fine].double()
            error = (value[fine] - true).abs()
            wrong += float(error.square().sum())
            if error.numel() and rms > 0:
                scaled = max(scaled, float((error / (true.abs() + rms)).max()))
    stats = OutputStats(
        dtype=values.dtype_name(output.dtype),
        shape=tuple(output.shape),
        floating=floating,
        rms=rms,
        non_finite=non_finite,
        overflowed=overflowed,
        max_scaled_error=None if flat_oracle is None else scaled,
        relative_rms_error=None if flat_oracle is None else (wrong / squares) ** 0.5 if squares else 0.0,
    )
    # A candidate that does not overflow where the reference does is right as well.
    finite_oracle = None if oracle is None or not overflowed else _real(oracle).to(wide)
    return expected, finite_oracle, stats


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _rms(tensor: torch.Tensor) -> float:
    kept = _real(tensor).double()
    kept = kept[torch.isfinite(kept)]
    return float(kept.square().mean().sqrt()) if kept.numel() else 0.0


def _checksum(tensors: list[torch.Tensor]) -> int:
    """A number that depends on every byte and its place; wraps around at 64 bits."""
    total = 0
    for tensor in tensors:
        data = values.as_bytes(tensor)
        if data.numel() % 8 == 0 and data.storage_offset() % 8 == 0:
            data = data.view(torch.int64)
        for start in range(0, data.numel(), CHUNK):
            part = data[start : start + CHUNK].to(torch.int64)
            places = torch.arange(1, 2 * part.numel(), 2, device=part.device)
            total = (total * 1_000_003 + int((part * places).sum()) + tensor.numel()) & ((1 << 64) - 1)
    return total
