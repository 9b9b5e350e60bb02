"""One contender of a measurement, as the gate sees it: a stopwatch process, its answers and its samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from cuda_agent.records import codec
from cuda_agent.records.channel import Channel, ChannelClosed
from cuda_agent.records.jobs import GIB, Died, Limits, WorkerJob, describe
from cuda_agent.records.stopwatch import Fell, Input, Prepare, Prepared, Reply, Round, RoundTimes, StopwatchRequest
from cuda_agent.records.timing import Samples
from cuda_agent.records.verdict import Cheated, Crashed, MachineFault, ProblemFault, TimedOut, Verdict
from cuda_agent.sandbox.contract import Sandbox

COMPILE_LIMIT_S = 900.0
"""Longest wait for a compiled baseline to be ready; max-autotune tries many kernels."""
PREPARE_LIMIT_S = 120.0
"""Longest wait for the eager reference and the candidate to be ready."""
ROUND_LIMIT_S = 30.0
"""Longest wait for a round, on top of four times what its calls should take."""
LONGEST_ROUND_S = 300.0
COVER_SHARE = 2.0
LEAST_COVER_US = 50.0
"""How long the device may be kept waiting before a call: this, or that share of the call's wall time and this."""
LIMITS = Limits(memory_bytes=64 * GIB, processes=512)
"""Host memory of a CUDA context and of torch.compile's workers, of which there is one a core."""

R = TypeVar("R")


class Stopped(Exception):
    """The measurement ends with a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class ContenderProcess:
    """A stopwatch process. Every method but `end` raises `Stopped` when the process does not do as told."""

    def __init__(
        self, sandbox: Sandbox, request: StopwatchRequest, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Start the process in `folder`, which must not exist; raises MachineError when it can't be started."""
        folder.mkdir()
        codec.write(folder / "request.json", request)
        self.name = request.contender
        self.case = request.case
        self.folder = folder
        self.calls = 0
        self.device_us: list[float] = []
        self.wall_us: list[float] = []
        self.leftover_us: list[float] = []
        self.unaccounted_us: list[float] = []
        """Per turn: what the gate's clock saw beyond the times reported, a call."""
        self.exposed = 0
        job = WorkerJob(worker="stopwatch", folder=str(folder), limits=LIMITS, environment=dict(environment))
        self._job = sandbox.start(job)
        self._link = Channel(self._job.channel)
        self._ended = False

    def prepare(self, seeds: tuple[int, ...], *, exact: bool) -> Prepared:
        """Let it make inputs, build and warm up."""
        limit_s = COMPILE_LIMIT_S if self.name in ("compiled", "max-autotune") else PREPARE_LIMIT_S
        self.ready = self.ask(Prepare(seeds=seeds, exact=exact), Prepared, limit_s)
        if self.ready.call_us <= 0 or self.ready.cover_us < 0 or self.ready.sets < 2 or self.ready.sets > len(seeds):
            raise self._lied("nonsense about its warm-up")
        return self.ready

    def turn(
        self, device: tuple[Input, ...], wall: tuple[Input, ...], *, keep: int | None, keep_seed: int
    ) -> RoundTimes:
        """Let it time calls, and note the samples."""
        call_s = self.ready.call_us / 1e6 + self.ready.input_seconds
        limit_s = min(LONGEST_ROUND_S, ROUND_LIMIT_S + 4 * (len(device) + len(wall) + 1) * call_s)
        started = time.monotonic()
        times = self.ask(Round(device=device, wall=wall, keep=keep, keep_seed=keep_seed), RoundTimes, limit_s)
        elapsed_us = (time.monotonic() - started) * 1e6
        if [len(times.device_us), len(times.wall_us), len(times.leftover_us)] != [len(device), len(wall), len(device)]:
            raise self._lied(
                f"{len(times.device_us)} and {len(times.wall_us)} times where {len(device)} and {len(wall)} calls were "
                "asked for"
            )
        if min((*times.device_us, *times.wall_us)) <= 0 or not 0 <= times.exposed <= len(device):
            raise self._lied("a time that is not above 0, or a count that can't be")
        self.device_us += times.device_us
        self.wall_us += times.wall_us
        self.leftover_us += times.leftover_us
        self.exposed += times.exposed
        if keep is None:  # writing the kept output takes time of its own
            # The wait that covers the launch is the process's own word, so it counts as far as the wall time explains
            # it: enqueueing a call takes no longer than the whole call.
            cover_us = min(self.ready.cover_us, COVER_SHARE * statistics.median(times.wall_us) + LEAST_COVER_US)
            claimed = sum(times.device_us) + sum(times.leftover_us) + sum(times.wall_us) + len(device) * cover_us
            self.unaccounted_us.append((elapsed_us - claimed) / (len(device) + len(wall)))
        return times

    def forget(self) -> None:
        """Drop the samples taken so far."""
        for samples in (self.device_us, self.wall_us, self.leftover_us, self.unaccounted_us):
            samples.clear()
        self.exposed = 0

    def samples(self) -> Samples:
        """Return the samples taken since the last `forget`."""
        return Samples(
            contender=self.name,
            case=self.case,
            device_us=tuple(self.device_us),
            wall_us=tuple(self.wall_us),
            exposed=self.exposed,
            per_round=self.calls,
            steady=self.ready.steady,
        )

    def end(self) -> None:
        """End the process, if it has not ended."""
        if not self._ended:
            self._ended = True
            self._job.kill()

    def ask(self, command: Any, kind: type[R], limit_s: float) -> R:
        """Send a command and return the answer."""
        try:
            self._link.send(command)
            reply: Any = self._link.receive(Reply, timeout_s=limit_s)
        except TimeoutError:
            self.end()
            raise Stopped(self._late(limit_s)) from None
        except ChannelClosed:
            raise Stopped(self._gone()) from None
        if isinstance(reply, Fell):
            raise Stopped(self._fell(reply))
        if not isinstance(reply, kind):
            raise self._lied(f"{type(reply).__name__} where {kind.__name__} was asked for")
        return reply

    def _late(self, limit_s: float) -> Verdict:
        message = f"The {self.name} did not answer within {limit_s:.0f} s while it was timed."
        if self.name == "candidate":
            return TimedOut(gate="profile", check="call time", message=message, limit_s=limit_s)
        return ProblemFault(gate="profile", check=f"{self.name} baseline", message=message)

    def _gone(self) -> Verdict:
        self._ended = True
        outcome = self._job.wait(10)
        tail = outcome.stderr_tail.strip()[-600:] if isinstance(outcome, Died) else ""
        message = f"The process that times the {self.name} {describe(outcome)}. {tail}".strip()
        if self.name == "candidate":
            return Crashed(gate="profile", check="timed call", message=message)
        if isinstance(outcome, Died) and (outcome.limit is not None or outcome.signal == "SIGKILL"):
            return MachineFault(gate="profile", check="memory", message=message)
        return ProblemFault(gate="profile", check=f"{self.name} baseline", message=message)

    def _fell(self, reply: Fell) -> Verdict:
        message = f"The {self.name} failed while it was timed ({reply.stage}): {reply.error}"
        if self.name != "candidate":
            if reply.out_of_memory:
                return MachineFault(gate="profile", check="device memory", message=message)
            return ProblemFault(gate="profile", check=f"{self.name} baseline", message=message)
        if reply.stage == "confinement":
            return MachineFault(gate="profile", check="confinement", message=message)
        if reply.stage in ("problem", "inputs"):
            # The eager reference got past these, and nothing of the candidate was loaded yet.
            return MachineFault(gate="profile", check="device memory", message=message)
        return Crashed(gate="profile", check="timed call", message=message)

    def _lied(self, what: str) -> Stopped:
        message = f"The process that times the {self.name} reported {what}."
        if self.name == "candidate":
            return Stopped(Cheated(gate="profile", check="samples", message=message))
        return Stopped(MachineFault(gate="profile", check="samples", message=message))
