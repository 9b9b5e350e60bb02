"""The process that compares: reads raw bytes, never loads the candidate or unpickles anything, and reports facts."""

from __future__ import annotations

import hashlib
import math
import socket
from pathlib import Path
from typing import Any

import msgspec
import torch

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel
from cuda_agent.records.verification import (
    Bound,
    CompareCommand,
    Compared,
    CompareFailed,
    CompareRequest,
    Facts,
    Quit,
    Take,
    Taken,
)
from cuda_agent.worker import poison, values

CHUNK = 1 << 24
"""Elements compared at a time."""
HASHED_BYTES = 64 << 20
"""Results up to this size are recognised when they come again."""
POISON = (0xFE, 0x7B, 0xFF)
"""Bytes that unwritten memory may hold."""


def main(folder: Path, channel: socket.socket) -> None:
    """Serve `CompareCommand`s until told to quit."""
    request = codec.read(folder / "request.json", CompareRequest)
    if request.device.startswith("cuda"):
        torch.zeros(1, device=request.device)  # the context takes a while, and there is nothing to compare yet
    link = Channel(channel)
    taken: list[torch.Tensor] = []
    seen: dict[tuple[int, bytes], int] = {}
    while True:
        command: CompareCommand = link.receive(CompareCommand)
        if isinstance(command, Quit):
            return
        try:
            if isinstance(command, Take):
                taken.clear()
                link.send(_take(command, request.device, taken, seen))
            else:
                facts = [
                    _facts(
                        got,
                        values.read_tensor(expected, request.device),
                        None if other is None else values.read_tensor(other, request.device),
                        bound,
                    )
                    for got, expected, other, bound in zip(
                        taken, command.expected, command.alternatives, command.bounds, strict=True
                    )
                ]
                taken.clear()
                link.send(Compared(trial=command.trial, facts=tuple(facts)))
        except (ValueError, torch.OutOfMemoryError, MemoryError) as error:
            link.send(CompareFailed(message=f"{type(error).__name__}: {error}"))
            return
        if request.device.startswith("cuda"):
            torch.cuda.empty_cache()


def _take(command: Take, device: str, taken: list[torch.Tensor], seen: dict[tuple[int, bytes], int]) -> Taken:
    same_as: list[int | None] = []
    for index, file in enumerate(command.tensors):
        try:
            # Strides are a candidate's claim and of no use here.
            plain = msgspec.structs.replace(file, stride=None)
            tensor = values.read_tensor(plain, device)
        except ValueError as error:
            return Taken(trial=command.trial, unreadable=f"output {index}: {error}", same_as=())
        taken.append(tensor)
        data = values.as_bytes(tensor)
        same_as.append(None)
        if 0 < data.numel() <= HASHED_BYTES:
            digest = hashlib.blake2b(data.cpu().numpy().data, digest_size=16).digest()
            same_as[-1] = seen.get((index, digest))
            seen.setdefault((index, digest), command.trial)
    return Taken(trial=command.trial, unreadable="", same_as=tuple(same_as))


def _facts(got: torch.Tensor, expected: torch.Tensor, other: torch.Tensor | None, bound: Bound) -> Facts:
    """Compare one output, chunk by chunk; `expected` is wide and real when `got` is floating or complex.

    A value that is right by `other` alone is right.
    """
    floating = got.is_floating_point() or got.is_complex()
    dims = tuple(got.shape)
    pairs = torch.view_as_real(got) if got.is_complex() else got
    flat_got, flat_expected = pairs.reshape(-1), expected.reshape(-1)
    flat_other = None if other is None else other.reshape(-1)
    raw = values.as_bytes(got).view(-1, got.element_size()) if got.numel() else None
    width = 2 if got.is_complex() else 1
    sum_error, sum_expected = 0.0, 0.0
    tally = _Tally(dims)
    for start in range(0, flat_got.numel(), CHUNK):
        a, b = flat_got[start : start + CHUNK], flat_expected[start : start + CHUNK]
        if floating:
            value, true = a.double(), b.double()
            both = torch.isfinite(value) & torch.isfinite(true)
            error = torch.where(both, (value - true).abs(), 0.0)
            limit = bound.atol + bound.rtol * true.abs()
            same = (value == true) | (torch.isnan(value) & torch.isnan(true))
            # Written so that a NaN anywhere counts as bad.
            good = torch.where(both, error <= limit, same)
            if flat_other is not None:
                true_other = flat_other[start : start + CHUNK].double()
                good = good | ((value - true_other).abs() <= bound.atol + bound.rtol * true_other.abs())
            if bool(both.any()):
                tally.any_finite = True
                sum_error += float(error.square().sum())
                sum_expected += float(torch.where(both, true, 0.0).square().sum())
                tally.max_error = max(tally.max_error, float(error.max()))
                ratio = torch.where(error > 0, error / limit, 0.0)
                tally.worst_ratio = max(tally.worst_ratio, float(torch.where(both, ratio, 0.0).max()))
            tally.wrong_non_finite += int((~both & ~good).sum())
        else:
            good = a == b
            if flat_other is not None:
                good = good | (a == flat_other[start : start + CHUNK])
            if a.numel() and a.dtype != torch.bool:
                error = (a.double() - b.double()).abs()
                tally.any_finite = True
                tally.max_error = max(tally.max_error, float(torch.where(good, 0.0, error).max()))
        tally.add(good, start, width, a, raw)
    first = tally.first
    relative = (
        None if sum_expected == 0 and sum_error > 0 else math.sqrt(sum_error / sum_expected) if sum_error else 0.0
    )
    return Facts(
        total=got.numel(),
        bad=tally.bad,
        first_bad=() if first is None else _unravel(first, dims),
        expected="" if first is None else _text(expected.reshape(-1), first, width),
        got="" if first is None else _text(flat_got, first, width),
        low=tuple(tally.low),
        high=tuple(tally.high),
        max_abs_error=tally.max_error if tally.any_finite else None,
        relative_rms_error=relative if floating else None,
        worst_ratio=None if math.isinf(tally.worst_ratio) else tally.worst_ratio,
        wrong_non_finite=tally.wrong_non_finite,
        poisoned=tally.poisoned,
        zeros=tally.zeros,
    )


class _Tally:
    """What is known of the bad elements so far."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        self._dims = dims
        self.bad = 0
        self.first: int | None = None
        self.low: list[int] = []
        self.high: list[int] = []
        self.any_finite = False
        self.max_error = 0.0
        self.worst_ratio = 0.0
        self.wrong_non_finite = 0
        self.poisoned = 0
        self.zeros = 0

    def add(self, good: torch.Tensor, start: int, width: int, got: torch.Tensor, raw: torch.Tensor | None) -> None:
        if bool(good.all()):
            return
        places = torch.nonzero(~good).reshape(-1)
        zero = got[places].double() == 0  # widened: torch can't compare the 8-bit types
        elements = torch.div(places + start, width, rounding_mode="floor")
        if width > 1:
            elements = torch.unique(elements)
        self.bad += elements.numel()
        if self.first is None:
            self.first = int(elements[0])
        self.zeros += int(zero.sum())
        if raw is not None:
            self.poisoned += int(poison.is_poison(raw[elements], POISON).sum())
        low, high = [], []
        rest = elements
        for size in reversed(self._dims):
            index = rest % size
            low.append(int(index.min()))
            high.append(int(index.max()))
            rest = torch.div(rest, size, rounding_mode="floor")
        low.reverse()
        high.reverse()
        self.low = list(map(min, self.low, low)) if self.low else low
        self.high = list(map(max, self.high, high)) if self.high else high


def _unravel(flat: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(dims):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _text(flat: Any, element: int, width: int) -> str:
    """The value of one element with the digits that tell it from its neighbours."""
    parts = [flat[element * width + offset] for offset in range(width)]
    numbers = [f"{part.item():.9g}" if part.is_floating_point() else str(part.item()) for part in parts]
    return numbers[0] if width == 1 else f"({' + '.join(numbers)}j)"
