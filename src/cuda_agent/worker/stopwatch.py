"""The process that times one contender on a CUDA device, a round at a time, when it is told to.

Before every call the L2 cache is filled with something else and the inputs are another set, at other addresses. A
device time comes from an event pair around the call: the fill before it is still running when the call is enqueued, so
launch latency is hidden and the kernels alone are timed. A wall time starts with an idle device. Numbers from here
are claims of the process that holds the contender.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel
from cuda_agent.records.stopwatch import (
    Check,
    Checked,
    Command,
    Difference,
    Fell,
    KeptOutput,
    Prepare,
    Prepared,
    Quit,
    Round,
    RoundTimes,
    StopwatchRequest,
)
from cuda_agent.records.verification import TensorFile
from cuda_agent.worker import candidate_module, values
from cuda_agent.worker.problem_module import LoadedProblem

SMALLEST_SCRATCH_BYTES = 256 << 20
"""Bytes written before each call: at least this, and four times the L2 cache."""
STEADY = 0.05
"""Warm-up is over when the medians of the last calls and of those before differ by less than this share."""
STEADY_CALLS = 8
KEPT_ELEMENTS = 1 << 20
"""Most elements kept of one output for a check."""

_Stage = Literal["problem", "inputs", "build", "call", "check"]


def main(folder: Path, channel: socket.socket) -> None:
    """Serve commands until told to quit or until a step raises."""
    request = codec.read(folder / "request.json", StopwatchRequest)
    _Stopwatch(request, folder, Channel(channel)).serve()


class _Stopwatch:
    def __init__(self, request: StopwatchRequest, folder: Path, link: Channel) -> None:
        self._request = request
        self._folder = folder
        self._link = link
        self._stage: _Stage = "problem"
        self._device = torch.device(request.device)
        self._sets: list[list[Any]] = []

    def serve(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            self._switches = _set_tf32(self._request.tf32)
            while True:
                command: Any = self._link.receive(Command)
                if isinstance(command, Quit):
                    return
                if isinstance(command, Prepare):
                    self._link.send(self._prepare(command))
                elif isinstance(command, Round):
                    self._link.send(self._round(command))
                elif isinstance(command, Check):
                    self._link.send(self._check(command))
        except (Exception, SystemExit) as error:
            tail = "".join(traceback.format_exception(error)[-3:]).strip()[-1500:]
            self._link.send(
                Fell(
                    stage=self._stage,
                    out_of_memory=isinstance(error, torch.OutOfMemoryError | MemoryError),
                    error=f"{type(error).__name__}: {str(error)[:1500]}\n{tail}",
                )
            )

    # --- prepare ---

    def _prepare(self, command: Prepare) -> Prepared:
        request = self._request
        started = time.monotonic()
        problem = LoadedProblem(request.problem, shapes="gpu", device=request.device)
        reference = problem.make_model(request.seed)
        self._stage = "inputs"
        properties: Any = torch.cuda.get_device_properties(self._device)
        l2_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 << 20
        self._scratch = torch.empty(max(SMALLEST_SCRATCH_BYTES, 4 * l2_bytes), dtype=torch.uint8, device=self._device)
        self._make_sets(problem, command.sets)
        self._stage = "build"
        self._contender = self._build(problem, reference)
        self._stage = "call"
        call_us, calls, steady = self._warm_up()
        return Prepared(
            setup_seconds=round(time.monotonic() - started, 3),
            warm_up_calls=calls,
            steady=steady,
            call_us=call_us,
            sets=len(self._sets),
            gpu=str(properties.name),
            gpu_uuid=f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "",
            torch=torch.__version__,
            triton=_triton_version(),
            python=platform.python_version(),
            l2_bytes=l2_bytes,
            fill_bytes_per_us=self._fill_rate(),
        )

    def _make_sets(self, problem: LoadedProblem, wanted: int | None) -> None:
        request = self._request
        free, _ = torch.cuda.mem_get_info(self._device)
        first = problem.inputs(request.case, request.input_seeds[0])
        _, tensors = values.flatten(first, pickled=False)
        size = max(1, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        fitting = max(2, min(len(request.input_seeds), int(free * request.memory_share // size)))
        count = fitting if wanted is None else min(wanted, len(request.input_seeds))
        self._sets = [first]
        self._sets += [problem.inputs(request.case, seed) for seed in request.input_seeds[1:count]]

    def _build(self, problem: LoadedProblem, reference: torch.nn.Module) -> Callable[..., Any]:
        request = self._request
        if request.contender == "eager":
            return reference
        if request.contender == "compiled":
            return torch.compile(reference)
        if request.contender == "max-autotune":
            return torch.compile(reference, mode="max-autotune")
        assert request.candidate is not None
        state = {name: value.detach().clone() for name, value in reference.state_dict().items()}
        init_inputs = problem.init_inputs()
        training = reference.training
        del reference
        place = self._folder / "candidate"
        candidate_module.write_out(request.candidate, place)
        module = candidate_module.load_module(place, request.library, emulated=False)
        model = candidate_module.construct(module, init_inputs, device=request.device, training=training)
        candidate_module.load_weights(model, state)
        return model

    def _warm_up(self) -> tuple[float, int, bool]:
        """Call until call times have settled; return the last median in microseconds, the calls, and whether."""
        times: list[float] = []
        started = time.monotonic()
        while True:
            inputs = self._sets[len(times) % len(self._sets)]
            begin = time.perf_counter()
            self._call(inputs)
            torch.cuda.synchronize(self._device)
            times.append((time.perf_counter() - begin) * 1e6)
            elapsed = time.monotonic() - started
            if len(times) >= 2 * STEADY_CALLS:
                last, before = _median(times[-STEADY_CALLS:]), _median(times[-2 * STEADY_CALLS : -STEADY_CALLS])
                steady = abs(last - before) <= STEADY * before
                if elapsed >= self._request.warm_up_s and (steady or elapsed >= self._request.warm_up_limit_s):
                    return last, len(times), steady
            elif elapsed >= self._request.warm_up_limit_s and len(times) >= 2:
                return _median(times[-2:]), len(times), False

    def _fill_rate(self) -> float:
        begin, end = _events()
        self._fill()
        begin.record()
        self._fill()
        end.record()
        end.synchronize()
        took_us = float(begin.elapsed_time(end)) * 1e3
        return self._scratch.numel() / max(1e-3, took_us)

    # --- timing ---

    def _call(self, inputs: list[Any]) -> Any:
        # no_grad rather than inference_mode: tensors made under the latter can't be used by custom autograd code.
        with torch.no_grad():
            return self._contender(*inputs)

    def _fill(self) -> None:
        self._scratch.fill_(1)

    def _round(self, command: Round) -> RoundTimes:
        self._stage = "call"
        device_us, leftover_us = [], []
        kept: tuple[KeptOutput, ...] = ()
        for number, which in enumerate(command.device_sets):
            inputs = self._sets[which % len(self._sets)]
            begin, end = _events()
            torch.cuda.synchronize(self._device)
            self._fill()
            begin.record()
            result = self._call(inputs)
            end.record()
            end.synchronize()
            before = time.perf_counter()
            torch.cuda.synchronize(self._device)
            leftover_us.append((time.perf_counter() - before) * 1e6)
            device_us.append(begin.elapsed_time(end) * 1e3)
            if number == command.keep:
                kept = self._keep(result, command.keep_as, command.keep_seed)
            del result
        wall_us = []
        for which in command.wall_sets:
            inputs = self._sets[which % len(self._sets)]
            self._fill()
            torch.cuda.synchronize(self._device)
            before = time.perf_counter()
            result = self._call(inputs)
            torch.cuda.synchronize(self._device)
            wall_us.append((time.perf_counter() - before) * 1e6)
            del result
        return RoundTimes(
            device_us=tuple(device_us),
            wall_us=tuple(wall_us),
            leftover_us=tuple(leftover_us),
            tf32_kept=_tf32_switches() == self._switches,
            kept=kept,
        )

    # --- checking a timed call ---

    def _keep(self, result: Any, stem: str, seed: int) -> tuple[KeptOutput, ...]:
        """Write a slice of every output of a timed call, so that another process can check it."""
        _, tensors = values.flatten(result, pickled=False)
        kept = []
        for index, tensor in enumerate(tensors):
            stride = max(1, math.ceil(tensor.numel() / KEPT_ELEMENTS))
            offset = seed % stride
            name = f"{stem}-{index}.bin"
            part = tensor.detach().contiguous().reshape(-1)[offset::stride]
            values.write_tensor(part, self._folder / name)
            kept.append(
                KeptOutput(
                    file=name,
                    dtype=values.dtype_name(tensor.dtype),
                    shape=tuple(tensor.shape),
                    offset=offset,
                    stride=stride,
                )
            )
        return tuple(kept)

    def _check(self, command: Check) -> Checked:
        self._stage = "check"
        result = self._call(self._sets[command.set % len(self._sets)])
        _, tensors = values.flatten(result, pickled=False)
        if len(tensors) != len(command.kept):
            return Checked(structure=f"{len(command.kept)} outputs instead of {len(tensors)}", differences=())
        for index, (kept, tensor) in enumerate(zip(command.kept, tensors, strict=True)):
            if kept.shape != tuple(tensor.shape) or kept.dtype != values.dtype_name(tensor.dtype):
                want = f"{values.dtype_name(tensor.dtype)}{list(tensor.shape)}"
                text = f"output {index} is {kept.dtype}{list(kept.shape)} instead of {want}"
                return Checked(structure=text, differences=())
        return Checked(
            structure="",
            differences=tuple(
                self._difference(kept, tensor, command.tolerance)
                for kept, tensor in zip(command.kept, tensors, strict=True)
            ),
        )

    def _difference(self, kept: KeptOutput, tensor: torch.Tensor, tolerance: float) -> Difference:
        expected = tensor.detach().contiguous().reshape(-1)[kept.offset :: kept.stride]
        file = TensorFile(
            file=str(self._folder / kept.file) if expected.numel() else "",
            dtype=kept.dtype,
            shape=tuple(expected.shape),
        )
        got = values.read_tensor(file, str(self._device))
        if not got.is_floating_point():
            bad = got != expected
            finite = torch.zeros_like(bad)
            error = torch.zeros(got.shape, device=got.device, dtype=torch.float64)
        else:
            a, b = got.double(), expected.double()
            finite = torch.isfinite(a) & torch.isfinite(b)
            error = torch.where(finite, (a - b).abs(), 0.0)
            rms = float(torch.where(torch.isfinite(b), b, 0.0).square().mean().sqrt()) if b.numel() else 0.0
            same = (a == b) | (a.isnan() & b.isnan())
            bad = torch.where(finite, error > tolerance * (b.abs() + rms), ~same)
        first = int(torch.nonzero(bad)[0]) if bool(bad.any()) else None
        return Difference(
            compared=got.numel(),
            bad=int(bad.sum()),
            first_bad=None if first is None else kept.offset + first * kept.stride,
            expected="" if first is None else str(expected[first].item()),
            got="" if first is None else str(got[first].item()),
            max_abs_error=float(error.max()) if bool(finite.any()) else None,
        )


def _events() -> tuple[Any, Any]:
    make: Any = torch.cuda.Event
    return make(enable_timing=True), make(enable_timing=True)


def _set_tf32(mode: str) -> tuple[bool, bool]:
    if mode != "as torch ships":
        torch.backends.cuda.matmul.allow_tf32 = mode == "on"
        torch.backends.cudnn.allow_tf32 = mode == "on"
    return _tf32_switches()


def _tf32_switches() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def _median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
