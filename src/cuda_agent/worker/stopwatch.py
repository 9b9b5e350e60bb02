"""The process that times one contender on a CUDA device, a round at a time, when it is told to.

Before every call the L2 cache is filled with something else, and the inputs are those of another set, drawn afresh
where that is quick. A device time comes from an event pair around the call. The device is kept waiting until the host
has enqueued the whole call, so that launch latency, which a compiled module has 100 us of and more, is no part of
it: a call that the device overtook is timed again. A wall time starts with an idle device and ends with one. Numbers from here are claims of the process that holds the contender.
"""

from __future__ import annotations

import gc
import importlib
import math
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel
from cuda_agent.records.stopwatch import (
    Check,
    Checked,
    Command,
    Difference,
    Fell,
    Input,
    KeptOutput,
    Prepare,
    Prepared,
    Quit,
    Round,
    RoundTimes,
    StopwatchRequest,
)
from cuda_agent.records.verification import TensorFile
from cuda_agent.worker import candidate_module, confinement, values
from cuda_agent.worker.device_clock import CudaClock, now
from cuda_agent.worker.problem_module import LoadedProblem

STEADY = 0.05
"""Warm-up is over when the medians of the last calls and of those before differ by less than this share."""
STEADY_CALLS = 8
LEAST_COVER_US = 50.0
COVER_FACTOR = 2.0
"""The device waits this many times what the host takes to enqueue a call."""
MOST_COVER_US = 4000.0
COVER_TRIES = 3
"""Times a call is timed until the device did not overtake the host, waiting twice as long each time."""
KEPT_ELEMENTS = 1 << 20
"""Most elements kept of one output for a check."""

_Stage = Literal["problem", "inputs", "confinement", "build", "call", "check"]


class Clock(Protocol):
    """What a stopwatch needs of a device; `CudaClock` says what each does."""

    l2_bytes: int
    gpu_uuid: str

    def free_bytes(self) -> int: ...
    def idle(self) -> None: ...
    def fill(self) -> None: ...
    def fill_bytes_per_us(self) -> float: ...
    def delay(self, us: float) -> None: ...
    def mark(self) -> Any: ...
    def reached(self, mark: Any) -> bool: ...
    def between_us(self, begin: Any, end: Any) -> float: ...
    def changed(self) -> tuple[str, ...]: ...


def main(folder: Path, channel: socket.socket) -> None:
    """Serve commands until told to quit or until a step raises."""
    request = codec.read(folder / "request.json", StopwatchRequest)
    serve(request, folder, Channel(channel), lambda: CudaClock(request.device))


def serve(request: StopwatchRequest, folder: Path, link: Channel, clock: Callable[[], Clock]) -> None:
    """Serve commands with the clock that `clock` makes."""
    stopwatch = _Stopwatch(request, folder)
    try:
        stopwatch.clock = clock()
        if request.contender in ("compiled", "max-autotune"):
            # The compiler takes seconds to import, and there may be a while to wait for the first command.
            importlib.import_module("torch._inductor.compile_fx")
        while True:
            command: Any = link.receive(Command)
            if isinstance(command, Quit):
                return
            if isinstance(command, Prepare):
                link.send(stopwatch.prepare(command))
            elif isinstance(command, Round):
                link.send(stopwatch.round(command))
            elif isinstance(command, Check):
                link.send(stopwatch.check(command))
    except (Exception, SystemExit) as error:
        link.send(stopwatch.fell(error))


class _Stopwatch:
    clock: Clock

    def __init__(self, request: StopwatchRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._place = folder / "candidate"
        self._stage: _Stage = "problem"
        self._switches = _Tf32(request.tf32)
        self._cover_us = LEAST_COVER_US
        self._enqueue_us: list[float] = []
        self._tries = COVER_TRIES

    # --- prepare ---

    def prepare(self, command: Prepare) -> Prepared:
        request = self._request
        problem = LoadedProblem(request.problem, shapes="gpu", device=request.device)
        self._stage = "inputs"
        self._inputs = _Inputs(problem, request.case)
        self._inputs.make(command, int(self.clock.free_bytes() * request.memory_share))
        self._stage = "problem"
        reference = problem.make_model(request.seed)
        self._stage = "build"
        started = time.monotonic()
        self._contender = self._build(problem, reference)
        del reference
        self._stage = "call"
        call_us, steady = self._warm_up(command)
        self._look_for_cover(command)
        # What is here to stay is no work for the collections between turns, a tenth of a second after torch.compile.
        gc.collect()
        gc.freeze()
        return Prepared(
            setup_seconds=round(time.monotonic() - started, 3),
            steady=steady,
            call_us=call_us,
            cover_us=self._cover_us,
            sets=self._inputs.count,
            input_seconds=self._inputs.seconds,
            gpu_uuid=self.clock.gpu_uuid,
            l2_bytes=self.clock.l2_bytes,
            fill_bytes_per_us=self.clock.fill_bytes_per_us(),
        )

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
        candidate_module.write_out(request.candidate, self._place)
        self._stage = "confinement"
        confinement.enter(reads=[request.library], writes=[str(self._folder)])
        self._stage = "build"
        module = candidate_module.load_module(self._place, request.library, emulated=False)
        model = candidate_module.construct(
            module, problem.init_inputs(), device=request.device, training=problem.training
        )
        candidate_module.load_weights(model, state)
        return model

    def _warm_up(self, command: Prepare) -> tuple[float, bool]:
        """Call until call times have settled; return the last median in microseconds, and whether they did."""
        times: list[float] = []
        started = time.monotonic()
        while True:
            slot = len(times) % self._inputs.count
            inputs = self._inputs.get(Input(slot=slot, seed=command.seeds[slot]))
            self._switches.set()
            self.clock.idle()
            begin = now()
            self._call(inputs)
            enqueued = now()
            self.clock.idle()
            times.append((now() - begin) * 1e6)
            self._enqueue_us.append((enqueued - begin) * 1e6)
            if len(times) == 1:
                self._inputs.look_for_changes()
            self._inputs.used(slot)
            elapsed = time.monotonic() - started
            if len(times) >= 2 * STEADY_CALLS:
                last, before = _median(times[-STEADY_CALLS:]), _median(times[-2 * STEADY_CALLS : -STEADY_CALLS])
                steady = abs(last - before) <= STEADY * before
                if elapsed >= self._request.warm_up_s and (steady or elapsed >= self._request.warm_up_limit_s):
                    return last, steady
            elif elapsed >= self._request.warm_up_limit_s and len(times) >= 2:
                return _median(times[-2:]), False

    def _look_for_cover(self, command: Prepare) -> None:
        """Find how long the device must wait; a call that itself waits for the device can't be covered at all."""
        wanted = COVER_FACTOR * _median(self._enqueue_us[-STEADY_CALLS:])
        self._cover_us = min(MOST_COVER_US, max(LEAST_COVER_US, wanted))
        exposed = [
            self._device_us(Input(slot=slot, seed=seed)).exposed
            for slot, seed in enumerate(command.seeds[:STEADY_CALLS])
            if slot < self._inputs.count
        ]
        if all(exposed):
            self._cover_us, self._tries = LEAST_COVER_US, 1

    # --- timing ---

    def _call(self, inputs: list[Any]) -> Any:
        # no_grad rather than inference_mode: tensors made under the latter can't be used by custom autograd code.
        with torch.no_grad():
            return self._contender(*inputs)

    def round(self, command: Round) -> RoundTimes:
        self._stage = "call"
        kept: tuple[KeptOutput, ...] = ()
        device_us, wall_us, leftover_us = [], [], []
        exposed = 0
        changed: set[str] = set()
        # Neither a collection nor the first kernel after another process had the device belongs to a call.
        gc.collect()
        gc.disable()
        try:
            self._wall_us(command.wall[0])
            for number, given in enumerate(command.device):
                timed = self._device_us(given)
                changed.update(self._switches.changed())
                device_us.append(timed.device_us)
                leftover_us.append(timed.leftover_us)
                exposed += timed.exposed
                if number == command.keep:
                    kept = self._keep(timed.result, command.keep_seed)
                del timed
            for given in command.wall:
                wall_us.append(self._wall_us(given))
                changed.update(self._switches.changed())
        finally:
            gc.enable()
        return RoundTimes(
            device_us=tuple(device_us),
            wall_us=tuple(wall_us),
            leftover_us=tuple(leftover_us),
            exposed=exposed,
            changed=(*sorted(changed), *self.clock.changed()),
            kept=kept,
        )

    def _device_us(self, given: Input) -> _DeviceTime:
        """Time a call by events, again while the device overtakes the host."""
        clock = self.clock
        cover_us = self._cover_us
        for last in (*[False] * (self._tries - 1), True):
            result = None  # gives memory back before the next try
            inputs = self._inputs.get(given)
            self._switches.set()
            clock.idle()
            clock.fill()
            clock.delay(cover_us)
            begin = clock.mark()
            result = self._call(inputs)
            end = clock.mark()
            exposed = clock.reached(begin)
            device_us = clock.between_us(begin, end)
            before = now()
            clock.idle()
            leftover_us = (now() - before) * 1e6
            self._inputs.used(given.slot)
            if last or not exposed:
                break
            cover_us = min(MOST_COVER_US, 2 * cover_us)
        return _DeviceTime(result, device_us, leftover_us, exposed)

    def _wall_us(self, given: Input) -> float:
        """Time a call by the host's clock, from an idle device to an idle device."""
        clock = self.clock
        inputs = self._inputs.get(given)
        self._switches.set()
        clock.fill()
        clock.idle()
        before = now()
        result = self._call(inputs)
        clock.idle()
        wall_us = (now() - before) * 1e6
        self._inputs.used(given.slot)
        del result
        return wall_us

    # --- checking a timed call ---

    def _keep(self, result: Any, seed: int) -> tuple[KeptOutput, ...]:
        """Write some elements of every output of a timed call, so that another process can check them."""
        _, tensors = values.flatten(result, pickled=False)
        kept = []
        for index, tensor in enumerate(tensors):
            values.write_tensor(_picked(tensor, seed)[0], self._folder / kept_name(index))
            kept.append(KeptOutput(dtype=values.dtype_name(tensor.dtype), shape=tuple(tensor.shape)))
        return tuple(kept)

    def check(self, command: Check) -> Checked:
        self._stage = "check"
        self._switches.set()
        result = self._call(self._inputs.get(command.input))
        self._inputs.used(command.input.slot)
        _, tensors = values.flatten(result, pickled=False)
        structure = _structure(command.kept, tensors)
        if structure:
            return Checked(structure=structure, differences=())
        try:
            differences = tuple(self._difference(command, index, tensor) for index, tensor in enumerate(tensors))
        except ValueError as error:
            return Checked(structure=f"a kept output can't be read: {error}", differences=())
        return Checked(structure="", differences=differences)

    def _difference(self, command: Check, index: int, tensor: torch.Tensor) -> Difference:
        expected, offset, stride = _picked(tensor, command.keep_seed)
        file = TensorFile(
            file=str(self._folder / kept_name(index)) if expected.numel() else "",
            dtype=values.dtype_name(expected.dtype),
            shape=tuple(expected.shape),
        )
        got = values.read_tensor(file, str(expected.device))
        if not got.is_floating_point():
            bad = got != expected
            finite = torch.ones_like(bad)
            error = (got.double() - expected.double()).abs()
        else:
            a, b = got.double(), expected.double()
            finite = torch.isfinite(a) & torch.isfinite(b)
            error = torch.where(finite, (a - b).abs(), 0.0)
            rms = float(torch.where(torch.isfinite(b), b, 0.0).square().mean().sqrt()) if b.numel() else 0.0
            same = (a == b) | (a.isnan() & b.isnan())
            bad = torch.where(finite, error > command.tolerance * (b.abs() + rms), ~same)
        first = int(torch.nonzero(bad)[0]) if bool(bad.any()) else None
        return Difference(
            compared=got.numel(),
            bad=int(bad.sum()),
            first_bad=None if first is None else offset + first * stride,
            expected="" if first is None else str(expected[first].item()),
            got="" if first is None else str(got[first].item()),
            max_abs_error=float(error.max()) if bool(finite.any()) else None,
        )

    def fell(self, error: BaseException) -> Fell:
        """Describe what ended this process."""
        where = candidate_module.where(error, self._place)
        tail = "".join(traceback.format_exception(error)[-3:]).strip()[-1500:]
        return Fell(
            stage=self._stage,
            out_of_memory=isinstance(error, torch.OutOfMemoryError | MemoryError),
            error=f"{type(error).__name__}: {str(error).strip()[:1500]}\n{f'at {where}' if where else tail}",
        )


@dataclass(frozen=True)
class _DeviceTime:
    result: Any
    device_us: float
    leftover_us: float
    """How long the device was busy after the call."""
    exposed: bool
    """Whether the device came to the call before the host had enqueued it whole."""


class _Inputs:
    """Sets of inputs at fixed addresses, whose contents are drawn anew when a call asks for another seed."""

    def __init__(self, problem: LoadedProblem, case: str) -> None:
        self._problem = problem
        self._case = case
        self._sets: list[list[Any]] = []
        self._seeds: list[int | None] = []
        self.seconds = 0.0
        """Wall time of drawing a set."""
        self.change = False
        """Whether calls write to their inputs."""

    @property
    def count(self) -> int:
        return len(self._sets)

    def make(self, command: Prepare, most_bytes: int) -> None:
        """Draw one set a seed, or as many as `most_bytes` hold."""
        for seed in command.seeds:
            if not command.exact and self.count >= 2 and (self.count + 1) * self._bytes() > most_bytes:
                break
            self._sets.append(self._problem.inputs(self._case, seed))
            self._seeds.append(seed)

    def get(self, given: Input) -> list[Any]:
        """Return the set in `given.slot`, holding what `given.seed` draws."""
        if self._seeds[given.slot] != given.seed:
            fresh = self._problem.inputs(self._case, given.seed)
            old_tree, old = values.flatten(self._sets[given.slot], pickled=False)
            new_tree, new = values.flatten(fresh, pickled=False)
            if old_tree == new_tree and all(map(_alike, old, new)) and not any(map(_overlaps, old)):
                for target, source in zip(old, new, strict=True):
                    # `.data` leaves the version counter as it was, so that nothing but the contents tells.
                    target.data.copy_(source)
            else:
                self._sets[given.slot] = fresh
            self._seeds[given.slot] = given.seed
        return self._sets[given.slot]

    def used(self, slot: int) -> None:
        """Note that a call had the set in `slot`."""
        if self.change:
            self._seeds[slot] = None

    def look_for_changes(self) -> None:
        """Compare the first set, which one call has had, with a fresh draw of it."""
        seed = self._seeds[0]
        assert seed is not None
        before = time.monotonic()
        fresh = self._problem.inputs(self._case, seed)
        _, new = values.flatten(fresh, pickled=False)
        for tensor in new[:1]:
            tensor.reshape(-1)[:1].cpu()  # the draw is done when this is
        self.seconds = round(time.monotonic() - before, 6)
        _, old = values.flatten(self._sets[0], pickled=False)
        self.change = not all(
            _alike(a, b) and torch.equal(values.as_bytes(a), values.as_bytes(b)) for a, b in zip(old, new, strict=True)
        )

    def _bytes(self) -> int:
        _, tensors = values.flatten(self._sets[0], pickled=False)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _Tf32:
    """torch's two TF32 switches, put back before every call: who sets them at import gains nothing."""

    def __init__(self, mode: str) -> None:
        if mode == "as torch ships":
            self._wanted = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        else:
            self._wanted = (mode == "on", mode == "on")

    def set(self) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._wanted

    def changed(self) -> tuple[str, ...]:
        try:
            found = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        except RuntimeError:  # torch refuses to tell once its newer switches were set
            return ("torch's fp32_precision",)
        names = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
        return tuple(name for name, value, wanted in zip(names, found, self._wanted, strict=True) if value != wanted)


def kept_name(index: int) -> str:
    """Return the file name of a kept output; the gate knows it too."""
    return f"kept-{index}.bin"


def _picked(tensor: torch.Tensor, seed: int) -> tuple[torch.Tensor, int, int]:
    """Return the elements that `seed` picks, flat, with the first one's index and the step between them."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    flat = flat.reshape(-1)
    stride = max(1, math.ceil(flat.numel() / KEPT_ELEMENTS))
    offset = seed % stride
    return flat[offset::stride], offset, stride


def _structure(kept: tuple[KeptOutput, ...], tensors: list[torch.Tensor]) -> str:
    if len(tensors) != len(kept):
        return f"{len(kept)} outputs instead of {len(tensors)}"
    for index, (output, tensor) in enumerate(zip(kept, tensors, strict=True)):
        if output.shape != tuple(tensor.shape) or output.dtype != values.dtype_name(tensor.dtype):
            want = f"{values.dtype_name(tensor.dtype)}{list(tensor.shape)}"
            return f"output {index} is {output.dtype}{list(output.shape)} instead of {want}"
    return ""


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as in an expanded tensor, which can't be written in place."""
    return any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
