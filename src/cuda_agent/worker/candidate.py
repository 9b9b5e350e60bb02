"""The process that holds the candidate: loads it once, calls it trial after trial, writes bytes out.

It is told inputs, weights and sizes; never a seed, an expected value or a tolerance. What it replies is a claim:
wrong claims can only get a candidate rejected, since values are compared elsewhere.
"""

from __future__ import annotations

import errno
import importlib
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel
from cuda_agent.records.verification import (
    Call,
    Called,
    CandidateCommand,
    CandidateLoaded,
    CandidateRequest,
    Confined,
    Construct,
    Done,
    LoadWeights,
    Quit,
    Raised,
    TensorFile,
    Values,
)
from cuda_agent.worker import candidate_module, confinement, poison, values
from cuda_agent.worker.torch_work import TorchWork
from cuda_agent.worker.tripwire import Tripwire

KEPT_BYTES = 1 << 30
"""A result up to this size is held during the next call, to see whether that changes it."""
LARGE_BYTES = 8 << 30
"""Inputs above this size are freed before the next ones are made, at the price of equal addresses."""

_Stage = Literal["import", "construct", "parameters", "call", "read"]
_Check = Literal["raised", "no ModelNew", "parameters", "fault", "unsupported", "time", "out of memory", "disk full"]


class _Faulted(Exception):
    """The emulated device faulted, and the candidate hid the error that its launcher raised."""


def main(folder: Path, channel: socket.socket) -> None:
    """Serve `CandidateCommand`s until told to quit or until the candidate raises."""
    request = codec.read(folder / "request.json", CandidateRequest)
    torch.backends.cuda.matmul.allow_tf32 = request.matmul_tf32
    torch.backends.cudnn.allow_tf32 = request.cudnn_tf32
    _Session(request, folder / "candidate", Channel(channel)).serve()


class _Session:
    def __init__(self, request: CandidateRequest, folder: Path, link: Channel) -> None:
        self._request = request
        self._folder = folder
        self._link = link
        self._readable = [request.library]
        self._stage: _Stage = "import"
        self._emulator: Any = None
        self._model: torch.nn.Module | None = None
        self._state: dict[str, torch.Tensor] = {}
        self._inputs: list[torch.Tensor] = []
        self._torch_work = TorchWork()
        self._earlier: list[torch.Tensor] = []
        self._earlier_files: tuple[TensorFile, ...] = ()

    def serve(self) -> None:
        try:
            works = self._set_up()
            if not self._confine():
                return
            self._load(poison_works=works)
            while True:
                command: CandidateCommand = self._link.receive(CandidateCommand)
                if isinstance(command, Quit):
                    return
                if isinstance(command, Construct):
                    self._construct(command)
                elif isinstance(command, LoadWeights):
                    self._load_weights(command)
                elif isinstance(command, Call):
                    self._call(command)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._link.send(self._raised(error))

    def _set_up(self) -> bool:
        """Do what needs rights that the candidate must not have; return whether fresh memory can be poisoned."""
        if self._on_device():
            torch.zeros(1, device=self._request.device)  # the context takes a while, and nothing is asked for yet
        works = self._on_device() or poison.host_poison_works()
        if self._request.emulated:
            # Before the extension: its emulated build links against the stand-in runtime that this loads. The
            # import stands here since a CUDA device needs none of it.
            emulator = importlib.import_module("cuda_agent.emulator")
            self._emulator = emulator.attach()
            self._readable.append(str(emulator.core_library().parent))
            if self._request.threads:
                self._emulator.threads(self._request.threads)
        candidate_module.write_out(self._request.candidate, self._folder)
        return works

    def _confine(self) -> bool:
        """Give up rights and say which; False when that failed."""
        job = self._folder.parent
        try:
            protections = confinement.enter(
                reads=[*filter(None, self._readable), self._request.handover],
                writes=[str(job), self._request.outputs],
            )
        except OSError as error:
            self._link.send(Confined(protections=None, failure=str(error)))
            return False
        self._link.send(Confined(protections=protections, failure=""))
        return True

    def _load(self, *, poison_works: bool) -> None:
        self._tripwire = Tripwire()
        self._module = candidate_module.load_module(
            self._folder, self._request.library, emulated=self._request.emulated
        )
        self._link.send(CandidateLoaded(poison_works=poison_works))

    def _construct(self, command: Construct) -> None:
        self._stage = "construct"
        init_inputs = values.read_values(command.init_inputs, self._request.device)
        self._model = candidate_module.construct(
            self._module, init_inputs, device=self._request.device, training=command.training
        )
        self._link.send(Done())

    def _load_weights(self, command: LoadWeights) -> None:
        self._stage = "parameters"
        assert self._model is not None
        self._state = {
            name: values.read_tensor(file, self._request.device)
            for name, file in zip(command.names, command.tensors, strict=True)
        }
        candidate_module.load_weights(self._model, self._state)
        self._link.send(Done())

    def _call(self, command: Call) -> None:
        assert self._model is not None
        if command.reload:
            self._stage = "parameters"
            candidate_module.load_weights(self._model, self._state)
        self._stage = "call"
        arguments, tensors = self._place_inputs(command)
        if self._emulator is not None:
            self._emulator.schedule(command.schedule)
            self._emulator.idle(command.idle)
        self._poison(command)
        started = time.monotonic()
        try:
            with torch.no_grad(), self._torch_work:
                result = self._model(*arguments)
            self._stage = "read"
            if self._on_device():
                torch.cuda.synchronize(self._request.device)
        finally:
            if not self._on_device():
                poison.poison_host(0)
        seconds = time.monotonic() - started
        fault = self._fault()
        if fault is not None:
            raise _Faulted(f"a launch failed and the error was caught: {fault.message}")
        self._link.send(self._report(command, result, tensors, seconds))

    def _place_inputs(self, command: Call) -> tuple[list[Any], list[torch.Tensor]]:
        """Make the arguments: at new addresses, or on top of those of the call before."""
        if not command.reuse_buffers and sum(_size(tensor) for tensor in self._inputs) > LARGE_BYTES:
            self._inputs = []
        fresh = [values.read_tensor(file, self._request.device) for file in command.inputs.tensors]
        same = len(fresh) == len(self._inputs) and all(
            a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
            for a, b in zip(fresh, self._inputs, strict=True)
        )
        if command.reuse_buffers and same:
            for old, new in zip(self._inputs, fresh, strict=True):
                # `.data` leaves the version counter as it was, so that nothing but the contents tells.
                old.data.copy_(new)
            fresh = self._inputs
        # The tensors of the call before are alive until here, so that fresh ones lie elsewhere.
        self._inputs = fresh
        return values.rebuild(command.inputs.tree, fresh), fresh

    def _poison(self, command: Call) -> None:
        if self._on_device():
            poison.poison_device(self._request.device, command.poison, command.poison_bytes)
        else:
            poison.poison_host(command.poison)

    def _report(self, command: Call, result: Any, inputs: list[torch.Tensor], seconds: float) -> Called:
        tree, tensors = values.flatten(result, pickled=False)
        plain = [tensor.data if type(tensor) is torch.nn.Parameter else tensor for tensor in tensors]
        kinds = tuple(_kind(tensor) for tensor in plain)
        readable = all(kind == "Tensor" for kind in kinds)
        earlier_changed = self._changed(self._earlier, self._earlier_files)
        self._earlier, self._earlier_files = [], ()
        stem = Path(self._request.outputs) / str(command.trial)
        if readable:
            files = [
                values.write_tensor(tensor, stem.with_name(f"{stem.name}-{index}.bin"), shared=True)
                for index, tensor in enumerate(plain)
            ]
        else:
            files = [
                TensorFile(file="", dtype=values.dtype_name(tensor.dtype), shape=tuple(tensor.shape))
                for tensor in plain
            ]
        if readable and sum(map(_size, plain)) <= KEPT_BYTES:
            self._earlier, self._earlier_files = plain, tuple(files)
        return Called(
            trial=command.trial,
            outputs=Values(tree=tree, tensors=tuple(files)),
            devices=tuple(str(tensor.device) for tensor in plain),
            types=kinds,
            changed_inputs=self._changed(inputs, command.inputs.tensors),
            shared_inputs=values.shared_memory(plain, inputs) if readable else (),
            earlier_changed=earlier_changed,
            launches=None
            if self._emulator is None or not self._request.library
            else self._emulator.counters()["launches"],
            torch_work=self._torch_work.take(),
            patched=self._tripwire.changed(),
            seconds=seconds,
        )

    def _changed(self, tensors: Sequence[torch.Tensor], files: Sequence[TensorFile]) -> tuple[int, ...]:
        """Indices of the tensors that no longer hold what their files do."""
        pairs = enumerate(zip(tensors, files, strict=True))
        return tuple(index for index, (tensor, file) in pairs if not values.holds(tensor, file))

    def _on_device(self) -> bool:
        return self._request.device.startswith("cuda")

    def _raised(self, error: BaseException) -> Raised:
        check: _Check = "raised"
        if isinstance(error, candidate_module.NoModelNew):
            check = "no ModelNew"
        elif isinstance(error, candidate_module.ParametersDiffer):
            check = "parameters"
        elif isinstance(error, torch.OutOfMemoryError | MemoryError):
            check = "out of memory"
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and self._stage == "read":
            check = "disk full"
        fault = self._fault()
        if fault is not None:
            check = "unsupported" if fault.kind == "unsupported" else "time" if fault.kind == "timeout" else "fault"
        bare = check in ("no ModelNew", "parameters") or isinstance(error, _Faulted)
        name = "" if bare else f"{type(error).__name__}: "
        return Raised(
            stage=self._stage,
            check=check,
            error=f"{name}{str(error).strip()[:4000]}",
            where=candidate_module.where(error, self._folder),
            fault="" if fault is None else str(fault.message)[:4000],
        )

    def _fault(self) -> Any:
        return None if self._emulator is None else self._emulator.last_fault()


def _kind(tensor: torch.Tensor) -> str:
    """`Tensor` for one whose bytes can be read as they are, else what it is."""
    if type(tensor) is not torch.Tensor:
        return type(tensor).__name__
    if tensor.layout != torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} Tensor"
    if tensor.is_quantized:
        return "quantized Tensor"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"Tensor on the {tensor.device.type} device"
    return "Tensor"


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
