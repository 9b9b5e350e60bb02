"""The profile gate: candidate, eager and compiled references take turns on one GPU, and the ratios get intervals.

Each contender lives in a process of its own and measures only when it is told to, so a candidate can't reach the
clock or the code of a baseline, and one is active at a time. Turns alternate in the order ABBA, so that drift of
clocks and temperature cancels in the ratios.

With cached baselines the candidate runs beside the eager reference now; its ratio to a compiled one is that ratio times
the cached ratio of eager to compiled, which was measured side by side as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from cuda_agent.gates.baselines import BASELINE_SCHEMA_VERSION, BaselineCache
from cuda_agent.gates.devices import device_state
from cuda_agent.gates.protocols import VerifyProtocol, base_rtol
from cuda_agent.metrics.intervals import Estimate, device_rounds, median, ratio_of_medians, wall_rounds
from cuda_agent.records import codec
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.channel import Channel, ChannelClosed
from cuda_agent.records.evidence import Device
from cuda_agent.records.jobs import GIB, Died, Limits, WorkerJob, describe
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.stopwatch import (
    BaselineKey,
    BaselineRun,
    Check,
    Checked,
    Fell,
    KeptOutput,
    Prepare,
    Prepared,
    Reply,
    Round,
    RoundTimes,
    StopwatchRequest,
    Tf32,
)
from cuda_agent.records.timing import Contender, ContenderTime, Samples, Speedup, Timing
from cuda_agent.records.verdict import Cheated, Crashed, MachineFault, ProblemFault, TimedOut, Verdict, WrongOutput
from cuda_agent.sandbox.contract import RunningJob, Sandbox

BASELINES: tuple[Literal["compiled", "max-autotune"], ...] = ("compiled", "max-autotune")
COMPILE_LIMIT_S = 900.0
"""Longest wait for a baseline to compile and warm up; max-autotune tries many kernels."""
CALL_LIMIT_S = 60.0
"""Longest wait for one timed call, compile and warm-up aside."""
HOPELESS = 10.0
"""A candidate that takes this many times the eager reference's time is measured over few rounds only."""
HOPELESS_ROUNDS = 3
LEFTOVER_SHARE = 0.5
"""Work left on the device after the call's end event may take this share of the call's time, and `LEFTOVER_US`."""
LEFTOVER_US = 100.0
INPUT_SETS = 6

R = TypeVar("R")


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long to measure."""

    rounds: int
    """Turns of each contender."""
    calls: int
    """Timed calls of each kind (device, wall) in a turn."""
    warm_up_s: float = 0.3
    warm_up_limit_s: float = 20.0
    fresh_baselines: bool = False
    """Measure all baselines beside the candidate, ignoring the cache."""


QUICK = ProfileSettings(rounds=6, calls=5)
"""For feedback while a candidate is being worked on."""
FINAL = ProfileSettings(rounds=12, calls=8)
"""For what is stored and claimed."""


class _Stop(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class ProfileGate:
    """Times candidates.

    Stops: a patched clock or statistic (samples leave the candidate's process raw, and statistics are computed here),
    results remembered from earlier calls (inputs differ per call, and the result of one timed call is checked), work
    left on other streams after the call, other processes on the same GPU that take turns through this gate.
    Does not stop: a candidate that lies about its own event times; bounding them from outside is still to come.
    """

    def __init__(self, *, sandbox: Sandbox, scratch: Path, cache_folder: Path) -> None:
        self._sandbox = sandbox
        self._scratch = scratch
        self._cache = BaselineCache(cache_folder / "baselines")
        self._locks = cache_folder / "locks"

    def measure(
        self,
        problem: Problem,
        description: ProblemDescription,
        candidate: Candidate,
        build: Build,
        *,
        device: Device,
        protocol: VerifyProtocol,
        settings: ProfileSettings,
        seed: int,
        on_progress: Callable[[str], None],
    ) -> Timing | Verdict:
        """Return the timing of a verified candidate on the problem's default case, or the verdict that ends it.

        Raises:
            MachineError: workers can't be started.
        """
        with self._session(problem, description, device, protocol, settings, seed, on_progress) as session:
            try:
                return session.timing(candidate, build)
            except _Stop as stop:
                return stop.verdict

    def baselines(
        self,
        problem: Problem,
        description: ProblemDescription,
        *,
        device: Device,
        protocol: VerifyProtocol,
        settings: ProfileSettings,
        on_progress: Callable[[str], None],
    ) -> BaselineRun | Verdict:
        """Return the cached baselines of a problem, measuring them when there are none; errors as `measure`."""
        seed = secrets.randbits(53)
        with self._session(problem, description, device, protocol, settings, seed, on_progress) as session:
            try:
                return session.baselines()
            except _Stop as stop:
                return stop.verdict

    @contextmanager
    def _session(
        self,
        problem: Problem,
        description: ProblemDescription,
        device: Device,
        protocol: VerifyProtocol,
        settings: ProfileSettings,
        seed: int,
        on_progress: Callable[[str], None],
    ) -> Generator[_Session]:
        self._scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._scratch, prefix="profile-"))
        try:
            with _alone_on(device, self._locks, on_progress):
                session = _Session(
                    self._sandbox,
                    folder,
                    self._cache,
                    problem,
                    description,
                    device,
                    protocol,
                    settings,
                    seed,
                    on_progress,
                )
                try:
                    yield session
                finally:
                    session.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone_on(device: Device, locks: Path, on_progress: Callable[[str], None]) -> Generator[None]:
    """Hold the device's lock: one candidate is timed at a time."""
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / f"{device.name.replace(':', '-')}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(f"waiting for {device.name}, on which another candidate is being timed")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Contender:
    """One stopwatch process."""

    def __init__(self, name: Contender, job: RunningJob, folder: Path) -> None:
        self.name = name
        self.job = job
        self.folder = folder
        self.link = Channel(job.channel)
        self.device_us: list[float] = []
        self.wall_us: list[float] = []
        self.setup_seconds = 0.0
        self.call_us = 0.0

    def samples(self, case: str, per_round: int) -> Samples:
        return Samples(
            contender=self.name,
            case=case,
            device_us=tuple(self.device_us),
            wall_us=tuple(self.wall_us),
            per_round=per_round,
        )


class _Session:
    """The contenders of one measurement."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        cache: BaselineCache,
        problem: Problem,
        description: ProblemDescription,
        device: Device,
        protocol: VerifyProtocol,
        settings: ProfileSettings,
        seed: int,
        on_progress: Callable[[str], None],
    ) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._cache = cache
        self._problem = problem
        self._description = description
        self._device = device
        self._protocol = protocol
        self._settings = settings
        self._seed = seed
        self._on_progress = on_progress
        self._contenders: list[_Contender] = []
        self._sets = 0
        self._kept: tuple[tuple[KeptOutput, ...], int] = ((), 0)
        self.case = "default"

    def close(self) -> None:
        """End every process."""
        for contender in self._contenders:
            contender.job.kill()

    def timing(self, candidate: Candidate, build: Build) -> Timing:
        """Measure the candidate; raises `_Stop`."""
        settings = self._settings
        before = device_state(self._device)
        eager = self._start("eager")
        ready = self._prepare(eager)
        key = self._key(ready)
        cached = None if settings.fresh_baselines else self._cache.find(key)
        if cached is None and not settings.fresh_baselines:
            cached = self._measure_baselines(eager, ready)
        beside: list[_Contender] = []
        failures: dict[str, str] = dict(cached.failures) if cached else {}
        if settings.fresh_baselines:
            beside, failures = self._compiled()
        contender = self._start("candidate", candidate, build)
        self._prepare(contender)
        eager.device_us, eager.wall_us = [], []
        self._take_turns([contender, eager, *beside])
        self._check_result(contender, eager)
        after = device_state(self._device)
        speedups = self._speedups(contender, eager, beside, cached)
        times = [
            self._time(c.samples(self.case, settings.calls), c.setup_seconds, False)
            for c in (contender, eager, *beside)
        ]
        samples = [c.samples(self.case, settings.calls) for c in (contender, eager, *beside)]
        if cached is not None:
            for old in cached.samples:
                if old.contender != "eager":
                    times.append(self._time(old, cached.setup_seconds.get(old.contender, 0.0), True))
                samples.append(old)
        return Timing(
            case=self.case,
            times=tuple(times),
            speedups=tuple(speedups),
            samples=tuple(samples),
            before=before,
            after=after,
            baseline_failures=failures,
        )

    def baselines(self) -> BaselineRun:
        """Return the baselines from the cache, or measure and store them; raises `_Stop`."""
        eager = self._start("eager")
        ready = self._prepare(eager)
        cached = self._cache.find(self._key(ready))
        return cached if cached is not None else self._measure_baselines(eager, ready)

    def _measure_baselines(self, eager: _Contender, ready: Prepared) -> BaselineRun:
        others, failures = self._compiled()
        self._take_turns([eager, *others])
        run = BaselineRun(
            schema_version=BASELINE_SCHEMA_VERSION,
            key=self._key(ready),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            samples=tuple(c.samples(self.case, self._settings.calls) for c in (eager, *others)),
            setup_seconds={c.name: c.setup_seconds for c in (eager, *others)},
            failures=failures,
        )
        self._cache.store(run)
        for other in others:
            self._end(other)
        return run

    def _compiled(self) -> tuple[list[_Contender], dict[str, str]]:
        """Start the compiled baselines; one that fails is left out with its reason."""
        ready: list[_Contender] = []
        failures: dict[str, str] = {}
        for name in BASELINES:
            self._on_progress(f"compiling the baseline {name}")
            contender = self._start(name)
            try:
                self._prepare(contender)
                ready.append(contender)
            except _Stop as stop:
                failures[name] = stop.verdict.message[:500]
                self._end(contender)
        return ready, failures

    def _end(self, contender: _Contender) -> None:
        contender.job.kill()
        self._contenders.remove(contender)

    # --- processes ---

    def _start(self, name: Contender, candidate: Candidate | None = None, build: Build | None = None) -> _Contender:
        folder = self._folder / name
        folder.mkdir()
        request = StopwatchRequest(
            contender=name,
            problem=self._problem.source,
            case=self.case,
            device=self._device.name,
            tf32=self._tf32(),
            seed=self._derive("weights"),
            input_seeds=tuple(self._derive(f"inputs {number}") for number in range(INPUT_SETS)),
            memory_share=0.12,
            warm_up_s=self._settings.warm_up_s,
            warm_up_limit_s=self._settings.warm_up_limit_s,
            candidate=candidate,
            library=build.library if build is not None else "",
        )
        codec.write(folder / "request.json", request)
        limits = Limits(memory_bytes=64 * GIB, processes=512)
        job = self._sandbox.start(WorkerJob(worker="stopwatch", folder=str(folder), limits=limits))
        contender = _Contender(name, job, folder)
        self._contenders.append(contender)
        return contender

    def _prepare(self, contender: _Contender) -> Prepared:
        limit = COMPILE_LIMIT_S if contender.name in BASELINES else 120.0
        ready = self._ask(contender, Prepare(sets=self._sets or None), Prepared, limit)
        self._sets = self._sets or ready.sets
        contender.setup_seconds = ready.setup_seconds
        contender.call_us = ready.call_us
        return ready

    def _take_turns(self, contenders: Sequence[_Contender]) -> None:
        """Let everybody measure, in an order that turns around every round."""
        settings = self._settings
        rounds = settings.rounds
        number = 0
        while number < rounds:
            self._on_progress(f"timing, round {number + 1} of {rounds}")
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                self._turn(contender, number)
            number += 1
            if number == 1 and contenders[0].name == "candidate" and len(contenders) > 1:
                slow = _middle(contenders[0].device_us) > HOPELESS * _middle(contenders[1].device_us)
                rounds = min(rounds, HOPELESS_ROUNDS) if slow else rounds

    def _turn(self, contender: _Contender, number: int) -> None:
        calls = self._settings.calls
        # Input sets go round in an order of its own for each round; the same for every contender.
        sets = [(self._derive(f"order {number} {call}")) % self._sets for call in range(2 * calls)]
        keep = self._derive("kept call") % calls if contender.name == "candidate" and number == 0 else None
        times = self._ask(
            contender,
            Round(
                device_sets=tuple(sets[:calls]),
                wall_sets=tuple(sets[calls:]),
                keep=keep,
                keep_as="kept",
                keep_seed=self._derive("kept elements") % (1 << 30),
            ),
            RoundTimes,
            CALL_LIMIT_S + 4 * calls * contender.call_us / 1e6,
        )
        if len(times.device_us) != calls or len(times.wall_us) != calls or min((*times.device_us, *times.wall_us)) <= 0:
            raise _Stop(
                Cheated(
                    gate="profile",
                    check="samples",
                    message=f"The process that times the {contender.name} reported {len(times.device_us)} and "
                    f"{len(times.wall_us)} times where {calls} positive ones were asked for.",
                )
            )
        if contender.name == "candidate":
            self._check_turn(times)
        if keep is not None:
            self._kept = (times.kept, sets[keep])
        contender.device_us += times.device_us
        contender.wall_us += times.wall_us

    def _check_turn(self, times: RoundTimes) -> None:
        if not times.tf32_kept:
            raise _Stop(
                Cheated(
                    gate="profile",
                    check="precision switches",
                    message="The candidate changed torch's TF32 switches while it was timed. Leave them alone, or set and "
                    "restore them within forward.",
                )
            )
        left, taken = _middle(times.leftover_us), _middle(times.device_us)
        if left > LEFTOVER_US + LEFTOVER_SHARE * taken:
            raise _Stop(
                Cheated(
                    gate="profile",
                    check="work after the call",
                    message=f"The device was busy for {left:.0f} us after the call had ended, and the call itself took "
                    f"{taken:.0f} us: work runs on a stream that nobody waits for. Make the current stream wait for it.",
                )
            )

    def _check_result(self, contender: _Contender, eager: _Contender) -> None:
        """Compare what a randomly chosen timed call returned with the reference."""
        kept, which = self._kept
        for output in kept:
            shutil.move(contender.folder / Path(output.file).name, eager.folder / Path(output.file).name)
        dtype = kept[0].dtype if kept else "float32"
        tolerance = 10 * base_rtol(self._protocol, dtype, self._description.precision)
        if self._description.tolerance is not None:
            tolerance = max(tolerance, self._description.tolerance.rtol)
        checked = self._ask(eager, Check(set=which, kept=kept, tolerance=tolerance), Checked, 120.0)
        bad = next((d for d in checked.differences if d.bad), None)
        if not checked.structure and bad is None:
            return
        what = checked.structure
        if bad is not None:
            what = (
                f"{bad.bad} of {bad.compared} values compared are wrong, the first at flat index {bad.first_bad}: "
                f"expected {bad.expected}, got {bad.got}"
            )
        raise _Stop(
            WrongOutput(
                gate="profile",
                check="result of a timed call",
                message=f"The result of a timed call is wrong though verified calls were right: {what}.",
                case=self.case,
                seed=self._seed,
                output=0,
                first_bad_index=() if bad is None or bad.first_bad is None else (bad.first_bad,),
                expected="" if bad is None else bad.expected,
                got="" if bad is None else bad.got,
                bad_count=0 if bad is None else bad.bad,
                total_count=0 if bad is None else bad.compared,
                max_abs_error=None if bad is None else bad.max_abs_error,
            )
        )

    def _ask(self, contender: _Contender, command: Any, kind: type[R], limit_s: float) -> R:
        name = contender.name
        try:
            contender.link.send(command)
            reply: Any = contender.link.receive(Reply, timeout_s=limit_s)
        except TimeoutError:
            contender.job.kill()
            message = f"The {name} did not answer within {limit_s:.0f} s while it was timed."
            if name == "candidate":
                raise _Stop(TimedOut(gate="profile", check="call time", message=message, limit_s=limit_s)) from None
            raise _Stop(ProblemFault(gate="profile", check=f"{name} baseline", message=message)) from None
        except ChannelClosed:
            outcome = contender.job.wait(10)
            tail = outcome.stderr_tail.strip()[-600:] if isinstance(outcome, Died) else ""
            message = f"The process that times the {name} {describe(outcome)}. {tail}".strip()
            raise _Stop(self._failure(name, message)) from None
        if isinstance(reply, Fell):
            message = f"The {name} failed while it was timed ({reply.stage}): {reply.error}"
            if reply.out_of_memory and name != "candidate":
                raise _Stop(MachineFault(gate="profile", check="device memory", message=message))
            raise _Stop(self._failure(name if reply.stage not in ("problem", "inputs") else "eager", message))
        if not isinstance(reply, kind):
            raise _Stop(self._failure(name, f"The process that times the {name} answered {type(reply).__name__}."))
        return reply

    @staticmethod
    def _failure(name: Contender, message: str) -> Verdict:
        if name == "candidate":
            return Crashed(gate="profile", check="timed call", message=message)
        return ProblemFault(gate="profile", check=f"{name} baseline", message=message)

    # --- numbers ---

    def _speedups(
        self, contender: _Contender, eager: _Contender, beside: list[_Contender], cached: BaselineRun | None
    ) -> list[Speedup]:
        calls = self._settings.calls
        mine = contender.samples(self.case, calls)
        now = eager.samples(self.case, calls)
        found = [self._side_by_side("eager", now, mine)]
        for other in beside:
            found.append(self._side_by_side(other.name, other.samples(self.case, calls), mine))
        if cached is None:
            return found
        reference = next(s for s in cached.samples if s.contender == "eager")
        for old in cached.samples:
            if old.contender == "eager" or old.contender == "candidate":
                continue
            ratios: list[Estimate] = []
            for rounds in (device_rounds, wall_rounds):
                seed = self._derive(f"bootstrap {old.contender}")
                today = ratio_of_medians(rounds(now), rounds(mine), seed=seed)
                stored = ratio_of_medians(rounds(old), rounds(reference), seed=seed + 1)
                ratios.append(today.times(stored))
            found.append(
                Speedup(
                    baseline=old.contender,
                    device=ratios[0].interval(),
                    wall=ratios[1].interval(),
                    how=f"eager side by side, times eager to {old.contender} side by side on {cached.created[:10]}",
                )
            )
        return found

    def _side_by_side(self, baseline: Contender, other: Samples, mine: Samples) -> Speedup:
        seed = self._derive(f"bootstrap {baseline}")
        assert baseline != "candidate"
        return Speedup(
            baseline=baseline,
            device=ratio_of_medians(device_rounds(other), device_rounds(mine), seed=seed).interval(),
            wall=ratio_of_medians(wall_rounds(other), wall_rounds(mine), seed=seed).interval(),
            how="side by side",
        )

    def _time(self, samples: Samples, setup_seconds: float, from_cache: bool) -> ContenderTime:
        seed = self._derive(f"median {samples.contender}")
        return ContenderTime(
            contender=samples.contender,
            calls=len(samples.device_us),
            setup_seconds=setup_seconds,
            device_median_us=median(device_rounds(samples), seed=seed).interval(),
            wall_median_us=median(wall_rounds(samples), seed=seed).interval(),
            from_cache=from_cache,
        )

    def _key(self, ready: Prepared) -> BaselineKey:
        return BaselineKey(
            problem=self._problem.id,
            case=self.case,
            protocol=self._protocol.name,
            precision=self._description.precision,
            gpu=self._device.model,
            driver=self._device.driver,
            torch=ready.torch,
            triton=ready.triton,
            python=ready.python,
            stopwatch=_stopwatch_version(),
            rounds=self._settings.rounds,
            calls_per_round=self._settings.calls,
        )

    def _tf32(self) -> Tf32:
        if self._protocol.tf32 == "as torch ships":
            return "as torch ships"
        return "on" if self._description.precision == "tf32" else "off"

    def _derive(self, label: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed}\0{label}".encode()).digest()[:6], "big")


def _stopwatch_version() -> str:
    """Return a hash of the measuring process's own source."""
    text = resources.files("cuda_agent").joinpath("worker/stopwatch.py").read_bytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _middle(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
