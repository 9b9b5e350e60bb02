"""A stopwatch that answers from a script: the profile gate is tested against it without a GPU."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel, ChannelClosed
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


@dataclass
class Behaviour:
    """What one contender's process does."""

    device_us: float = 10.0
    wall_us: float = 30.0
    leftover_us: float = 4.0
    input_seconds: float = 1e-4
    changed: tuple[str, ...] = ()
    hidden_s: float = 0.0
    """Time a round takes beyond what is reported."""
    fails: Fell | None = None
    """Answer to `Prepare`."""
    fails_round: Fell | None = None
    """Answer to the second `Round`."""
    dies: bool = False
    hangs: bool = False
    samples: Callable[[int], tuple[float, ...]] | None = None
    """Replaces the device times of a round of so many calls."""
    bad_share: float = 0.0
    """Of the values kept."""
    shape: tuple[int, ...] = (1000,)
    keeps: Callable[[Path], None] | None = None
    """Replaces writing the kept output."""
    noise: float = 0.01


class Clock:
    """The judge's clock while contenders are scripted: it shows what they say they took, and what they hide."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return what `time.monotonic` would."""
        return self.seconds


CLOCK = Clock()


@dataclass
class Stage:
    """All contenders of a test, and what was asked of them."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    requests: list[StopwatchRequest] = field(default_factory=list)
    turns: list[tuple[str, Round]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def __call__(self, folder: Path, link: socket.socket) -> None:
        request = codec.read(folder / "request.json", StopwatchRequest)
        self.started.append(request.contender)
        self.requests.append(request)
        behaviour = self.behaviours.get(request.contender, Behaviour())
        with contextlib.suppress(ChannelClosed):  # the gate ends contenders by closing their channel
            self._serve(request.contender, behaviour, folder, Channel(link))

    def _serve(self, name: str, behaviour: Behaviour, folder: Path, link: Channel) -> None:
        generator = np.random.default_rng(len(self.started))
        rounds = 0
        while True:
            command: Any = link.receive(Command)
            if isinstance(command, Quit):
                return
            if isinstance(command, Prepare):
                link.send(behaviour.fails or _prepared(behaviour, command))
                if behaviour.fails:
                    return
            elif isinstance(command, Round):
                self.turns.append((name, command))
                rounds += 1
                if behaviour.dies:
                    raise SystemExit(9)
                if behaviour.hangs:
                    threading.Event().wait(1.5)
                    return
                if behaviour.fails_round is not None and rounds == 2:
                    link.send(behaviour.fails_round)
                    return
                link.send(_times(behaviour, command, folder, generator))
            elif isinstance(command, Check):
                self.checks.append(command)
                link.send(_checked(command, folder))


def _prepared(behaviour: Behaviour, command: Prepare) -> Prepared:
    return Prepared(
        setup_seconds=0.5,
        steady=True,
        call_us=behaviour.wall_us,
        cover_us=50.0,
        sets=len(command.seeds) if command.exact else 4,
        input_seconds=behaviour.input_seconds,
        gpu_uuid="",
        l2_bytes=50 << 20,
        fill_bytes_per_us=3.5e6,
    )


def _times(behaviour: Behaviour, command: Round, folder: Path, generator: np.random.Generator) -> RoundTimes:
    def spread(middle: float, count: int) -> tuple[float, ...]:
        return tuple(float(x) for x in middle * (1 + behaviour.noise * generator.standard_normal(count)))

    kept: tuple[KeptOutput, ...] = ()
    if command.keep is not None:
        values = np.ones(100, dtype=np.float32)
        values[: int(behaviour.bad_share * 100)] = 7
        path = folder / "kept-0.bin"
        if behaviour.keeps is None:
            path.write_bytes(values.tobytes())
        else:
            behaviour.keeps(path)
        kept = (KeptOutput(dtype="float32", shape=behaviour.shape),)
    count = len(command.device)
    device_us = behaviour.samples(count) if behaviour.samples else spread(behaviour.device_us, count)
    wall_us = spread(behaviour.wall_us, len(command.wall))
    leftover_us = spread(behaviour.leftover_us, count)
    CLOCK.seconds += (sum(device_us) + sum(wall_us) + sum(leftover_us)) / 1e6 + behaviour.hidden_s
    return RoundTimes(
        device_us=device_us,
        wall_us=wall_us,
        leftover_us=leftover_us,
        exposed=0,
        changed=behaviour.changed,
        kept=kept,
    )


def _checked(command: Check, folder: Path) -> Checked:
    path = folder / "kept-0.bin"
    if not path.exists():
        return Checked(structure="a kept output can't be read: no readable file", differences=())
    got = np.frombuffer(path.read_bytes(), dtype=np.float32)
    bad = np.flatnonzero(got != 1)
    difference = Difference(
        compared=got.size,
        bad=bad.size,
        first_bad=int(bad[0]) + 205 if bad.size else None,
        expected="1.0" if bad.size else "",
        got=str(got[bad[0]]) if bad.size else "",
        max_abs_error=float(np.abs(got - 1).max()),
    )
    return Checked(structure="", differences=(difference,))
