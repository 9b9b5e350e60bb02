"""A device time holds no launch latency: the device waits until the host has enqueued the whole call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuda_agent.records.channel import Channel
from cuda_agent.records.stopwatch import Input, Prepare, Prepared, Quit, Reply, Round, RoundTimes, StopwatchRequest
from cuda_agent.worker import stopwatch

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.randn(4, 4)]

def get_init_inputs():
    return []
"""


class Host:
    """A clock whose device takes 7 us a call and overtakes a host that had less than `needs_us` of a head start."""

    l2_bytes = 1
    gpu_uuid = ""

    def __init__(self, needs_us: float) -> None:
        self.needs_us = needs_us
        self.delays: list[float] = []

    def free_bytes(self) -> int:
        return 1 << 30

    def idle(self) -> None:
        pass

    def fill(self) -> None:
        pass

    def fill_bytes_per_us(self) -> float:
        return 1.0

    def delay(self, us: float) -> None:
        self.delays.append(us)

    def mark(self) -> Any:
        return len(self.delays)

    def reached(self, mark: Any) -> bool:
        return self.delays[-1] < self.needs_us

    def between_us(self, begin: Any, end: Any) -> float:
        return 7.0

    def changed(self) -> tuple[str, ...]:
        return ()


class Bench:
    """A stopwatch in a thread, asked over its channel."""

    def __init__(self, link: Channel) -> None:
        self._link = link

    def prepare(self) -> Prepared:
        return self._ask(Prepare(seeds=(1, 2, 3), exact=True), Prepared)

    def turn(self, calls: int) -> RoundTimes:
        inputs = tuple(Input(slot=number % 3, seed=number % 3 + 1) for number in range(calls))
        return self._ask(Round(device=inputs, wall=inputs), RoundTimes)

    def _ask(self, command: Any, kind: Any) -> Any:
        self._link.send(command)
        reply: Any = self._link.receive(Reply, timeout_s=30)
        assert isinstance(reply, kind), reply
        return reply


@contextmanager
def bench(clock: Host, folder: Path) -> Iterator[Bench]:
    request = StopwatchRequest(
        contender="eager",
        problem=PROBLEM,
        case="default",
        device="cpu",
        tf32="off",
        seed=1,
        memory_share=0.5,
        warm_up_s=0.0,
        warm_up_limit_s=0.2,
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serving = threading.Thread(target=stopwatch.serve, args=(request, folder, Channel(theirs), lambda: clock))
        serving.start()
        link = Channel(ours)
        try:
            yield Bench(link)
        finally:
            link.send(Quit())
            serving.join(30)


def test_a_call_that_the_device_overtook_is_timed_again_with_a_longer_wait(tmp_path: Path) -> None:
    clock = Host(needs_us=0.0)
    with bench(clock, tmp_path) as asked:
        cover_us = asked.prepare().cover_us
        clock.needs_us = 1.5 * cover_us
        clock.delays.clear()
        times = asked.turn(2)
    assert clock.delays == [cover_us, 2 * cover_us, cover_us, 2 * cover_us]
    assert times.exposed == 0
    assert times.device_us == (7.0, 7.0)


def test_calls_that_can_not_be_covered_are_timed_once_and_counted(tmp_path: Path) -> None:
    clock = Host(needs_us=float("inf"))  # as where the call itself waits for the device
    with bench(clock, tmp_path) as asked:
        asked.prepare()
        clock.delays.clear()
        times = asked.turn(4)
    assert len(clock.delays) == 4
    assert times.exposed == 4


def test_the_wait_covers_what_the_host_needs_to_enqueue_a_call(tmp_path: Path) -> None:
    with bench(Host(needs_us=0.0), tmp_path) as asked:
        ready = asked.prepare()
    assert stopwatch.LEAST_COVER_US <= ready.cover_us <= stopwatch.MOST_COVER_US
