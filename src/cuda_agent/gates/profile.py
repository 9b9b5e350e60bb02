"""The profile gate: candidate, eager and compiled references take turns on one GPU, and the ratios get intervals.

Each contender lives in a process of its own and measures only when it is told to, so a candidate can't reach the
clock or the code of a baseline, and one is active at a time. Turns alternate in the order ABBA, so that drift of
clocks and temperature cancels in the ratios.

With cached baselines the candidate runs beside the eager reference now; its ratio to a compiled one is that ratio times
the cached ratio of compiled to eager, which was measured side by side as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import platform
import secrets
import shutil
import stat
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from cuda_agent.errors import MachineError
from cuda_agent.gates.baselines import BASELINE_SCHEMA_VERSION, BaselineCache
from cuda_agent.gates.contenders import ContenderProcess, Stopped
from cuda_agent.gates.devices import device_state, installed_torch
from cuda_agent.gates.protocols import VerifyProtocol, base_rtol
from cuda_agent.gates.speedups import contender_time, speedups
from cuda_agent.metrics.roofline import floor_us
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.evidence import Device
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.stopwatch import (
    BaselineKey,
    BaselineRun,
    Check,
    Checked,
    Difference,
    Input,
    KeptOutput,
    RoundTimes,
    StopwatchRequest,
    Tf32,
)
from cuda_agent.records.timing import Contender, Samples, Timing
from cuda_agent.records.verdict import BrokeContract, Cheated, MachineFault, Verdict, WrongOutput
from cuda_agent.sandbox.contract import Sandbox

COMPILED: tuple[Literal["compiled", "max-autotune"], ...] = ("compiled", "max-autotune")
FEWEST_ROUNDS = 3
"""Rounds that are measured whatever they take; fewer have no interval to speak of."""
FEWEST_CALLS = 2
"""Calls of each kind in a turn, however slow."""
HOPELESS = 10.0
"""A candidate that takes this many times the eager reference's time is measured over the fewest rounds."""
LEFTOVER_US = 15.0
LEFTOVER_SHARE = 0.05
"""The device may stay busy after a call this much longer than after the reference's, absolute and by call time.
Source: waiting for an idle H200 takes about 5 us."""
UNACCOUNTED_US = 200.0
UNACCOUNTED_SHARE = 0.5
"""The gate's own clock may see this much more than the reported times, a call, than for the reference: absolute, and
as a share of the reported times."""
FLOOR_FACTOR = 2.0
"""A time under the floor by this factor is no measurement; the factor is for the fill not being the fastest write."""
WRONG_SHARE = 1e-3
"""A timed call's result may differ from the reference in this share of elements, where near ties fall otherwise;
exact verification was the verify gate's work."""
INPUT_SETS = 6
MEMORY_SHARE = 0.12
"""Of the free device memory, for input sets of one contender; two contenders are there with warm baselines."""
FRESH_SHARE = 1 / 3
"""Inputs are drawn anew for every call where that takes no more than this share of the time limit."""


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long to measure."""

    rounds: int
    """Turns of each contender."""
    calls: int
    """Timed calls of each kind (device, wall) in a turn; fewer when they are slow."""
    limit_s: float
    """Wall time of all turns; rounds left over then are dropped, down to the fewest."""
    warm_up_s: float = 0.3
    warm_up_limit_s: float = 20.0
    fresh_baselines: bool = False
    """Measure all baselines beside the candidate, ignoring the cache."""


QUICK = ProfileSettings(rounds=6, calls=5, limit_s=15.0)
"""For feedback while a candidate is being worked on."""
FINAL = ProfileSettings(rounds=12, calls=8, limit_s=60.0)
"""For what is stored and claimed."""
BASELINE = ProfileSettings(rounds=12, calls=8, limit_s=120.0)
"""For cached baselines, whatever a candidate is measured with."""


class ProfileGate:
    """Times candidates.

    Stops: patched clocks and statistics (clocks are looked up in torch's library before the candidate is loaded,
    samples leave its process raw, statistics are computed here); results remembered from earlier calls (inputs are
    drawn anew per call where that is quick, and one timed call's result is checked); work left on other streams
    after the call; torch's current stream switched; TF32 switched on at import; times that the gate's own clock
    contradicts by more than 0.2 ms a call, or that are below the time to write the outputs; other processes of this
    user that time on the same GPU.
    Does not stop: a candidate that rewrites the stopwatch in its own process and lies by less than those bounds;
    another user's work on the same GPU; the cache of baselines or of compiled kernels being changed by a process of
    the same user.
    """

    def __init__(self, *, sandbox: Sandbox, scratch: Path, cache_folder: Path) -> None:
        self._sandbox = sandbox
        self._scratch = scratch
        self._cache_folder = cache_folder

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
            MachineError: workers can't be started, or the cache folder can't be written to.
        """
        with self._session(problem, description, device, protocol, settings, seed, on_progress) as session:
            try:
                return session.timing(candidate, build)
            except Stopped as stopped:
                return stopped.verdict

    def baselines(
        self,
        problem: Problem,
        description: ProblemDescription,
        *,
        device: Device,
        protocol: VerifyProtocol,
        on_progress: Callable[[str], None],
    ) -> BaselineRun | Verdict:
        """Return the cached baselines of a problem, measuring them when there are none; errors as `measure`."""
        seed = secrets.randbits(53)
        with self._session(problem, description, device, protocol, BASELINE, seed, on_progress) as session:
            try:
                return session.baselines()
            except Stopped as stopped:
                return stopped.verdict

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
            with _alone_on(device, self._cache_folder / "locks", on_progress):
                session = _Session(
                    self._sandbox,
                    folder,
                    self._cache_folder,
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
    path = locks / f"{device.name.replace(':', '-')}.lock"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise MachineError(
            f"The lock that keeps measurements on {device.name} apart can't be made: {path}: {error.strerror}. Make "
            "room there, or point CUDA_AGENT_CACHE to a folder that can be written to."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(f"waiting for {device.name}, on which another candidate is being timed")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Session:
    """The contenders of one measurement; methods raise `Stopped` where it ends with a verdict."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        cache_folder: Path,
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
        self._cache_folder = cache_folder
        self._cache = BaselineCache(cache_folder / "baselines")
        self._problem = problem
        self._description = description
        self._device = device
        self._protocol = protocol
        self._settings = settings
        self._seed = seed
        self._on_progress = on_progress
        self._contenders: list[ContenderProcess] = []
        self._input_seeds = tuple(self._derive(f"inputs {number}") for number in range(INPUT_SETS))
        self._kept: tuple[tuple[KeptOutput, ...], Input] | None = None
        self._case = "default"

    def close(self) -> None:
        """End every process, side by side: leaving a CUDA context takes a while."""
        if self._contenders:
            with ThreadPoolExecutor(len(self._contenders)) as pool:
                for _ in pool.map(ContenderProcess.end, self._contenders):
                    pass

    def timing(self, candidate: Candidate, build: Build) -> Timing:
        """Measure the candidate beside eager, and beside the compiled baselines unless these are in the cache."""
        settings = self._settings
        cached = None if settings.fresh_baselines else self._cache.find(self._key())
        eager = self._start("eager")
        # With all baselines known, the candidate's process can make its context while the reference warms up.
        contender = self._start("candidate", candidate, build) if cached is not None else None
        compiled = self._start_compiled() if cached is None else ()
        self._prepare_first(eager)
        beside: list[ContenderProcess] = []
        failures: dict[str, str] = {}
        if settings.fresh_baselines:
            beside, failures, _ = self._prepare_compiled(compiled)
        elif cached is None:
            cached = self._measure_baselines(eager, compiled)
        contender = contender or self._start("candidate", candidate, build)
        self._on_progress("warming up the candidate")
        contender.prepare(self._input_seeds, exact=True)
        before = device_state(self._device, eager.ready.gpu_uuid)
        self._take_turns([contender, eager, *beside], settings)
        after = device_state(self._device, eager.ready.gpu_uuid)
        self._check_claims(contender, eager)
        self._check_result(contender, eager)
        now = [each.samples() for each in (eager, *beside)]
        mine = contender.samples()
        setup = {each.name: each.ready.setup_seconds for each in (contender, eager, *beside)}
        times = [contender_time(each, setup_seconds=setup[each.contender], seed=self._seed) for each in (mine, *now)]
        old: list[Samples] = []
        if cached is not None:
            failures = cached.failures
            old = [msgspec.structs.replace(each, from_cache=True) for each in cached.samples]
            times += [
                contender_time(each, setup_seconds=cached.setup_seconds.get(each.contender, 0.0), seed=self._seed)
                for each in old
                if each.contender != "eager"
            ]
        return Timing(
            case=self._case,
            times=tuple(times),
            speedups=tuple(speedups(mine, now, cached, seed=self._seed)),
            samples=(mine, *now, *old),
            before=before,
            after=after,
            baseline_failures=dict(failures),
        )

    def baselines(self) -> BaselineRun:
        """Return the baselines from the cache, or measure and store them."""
        cached = self._cache.find(self._key())
        if cached is not None:
            return cached
        eager = self._start("eager")
        compiled = self._start_compiled()
        self._prepare_first(eager)
        return self._measure_baselines(eager, compiled)

    def _measure_baselines(self, eager: ContenderProcess, compiled: Sequence[ContenderProcess]) -> BaselineRun:
        others, failures, lasting = self._prepare_compiled(compiled)
        self._take_turns([eager, *others], BASELINE)
        run = BaselineRun(
            schema_version=BASELINE_SCHEMA_VERSION,
            key=self._key(),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            samples=tuple(each.samples() for each in (eager, *others)),
            setup_seconds={each.name: each.ready.setup_seconds for each in (eager, *others)},
            failures=failures,
        )
        if lasting:
            try:
                self._cache.store(run)
            except OSError as error:
                self._on_progress(f"the baselines could not be stored for the next time: {error}")
        for other in others:
            other.end()
        eager.forget()
        return run

    def _start_compiled(self) -> Sequence[ContenderProcess]:
        """Start the compiled baselines' processes, which import the compiler while others work."""
        return [self._start(name) for name in COMPILED]

    def _prepare_compiled(
        self, contenders: Sequence[ContenderProcess]
    ) -> tuple[list[ContenderProcess], dict[str, str], bool]:
        """Let the compiled baselines compile, one at a time since they time kernels to choose among them.

        Returns:
            Those that work; why the others don't; whether these would fail the same way another time.
        """
        working: list[ContenderProcess] = []
        failures: dict[str, str] = {}
        lasting = True
        for contender in contenders:
            self._on_progress(f"compiling the baseline {contender.name}")
            try:
                contender.prepare(self._input_seeds, exact=True)
                working.append(contender)
            except Stopped as stopped:
                failures[contender.name] = stopped.verdict.message[:600]
                lasting = lasting and not isinstance(stopped.verdict, MachineFault)
                contender.end()
        return working, failures, lasting

    # --- processes ---

    def _start(
        self, name: Contender, candidate: Candidate | None = None, build: Build | None = None
    ) -> ContenderProcess:
        request = StopwatchRequest(
            contender=name,
            problem=self._problem.source,
            case=self._case,
            device=self._device.name,
            tf32=self._tf32(),
            seed=self._derive("weights"),
            memory_share=MEMORY_SHARE,
            warm_up_s=self._settings.warm_up_s,
            warm_up_limit_s=self._settings.warm_up_limit_s,
            candidate=candidate,
            library=build.library if build is not None else "",
        )
        # Not the job's own temporary folder, which lies in memory that may be mounted noexec, and a second compilation
        # takes a second instead of ten.
        compiled = {
            "TORCHINDUCTOR_CACHE_DIR": str(self._cache_folder / "inductor"),
            "TRITON_CACHE_DIR": str(self._cache_folder / "triton"),
        }
        environment = compiled if name in COMPILED else {}
        contender = ContenderProcess(self._sandbox, request, self._folder / name, environment)
        self._contenders.append(contender)
        return contender

    def _prepare_first(self, eager: ContenderProcess) -> None:
        """Prepare the reference, which decides for all how many input sets there are."""
        self._on_progress("warming up the eager reference")
        ready = eager.prepare(self._input_seeds, exact=False)
        self._input_seeds = self._input_seeds[: ready.sets]

    def _take_turns(self, contenders: Sequence[ContenderProcess], settings: ProfileSettings) -> None:
        """Let everybody measure, in an order that turns around every round."""
        # Half of the limit, so that slow calls leave room for what surrounds them.
        share_us = settings.limit_s * 1e6 / 2 / (settings.rounds * 2 * len(contenders))
        for contender in contenders:
            fitting = int(share_us / contender.ready.call_us)
            contender.calls = max(FEWEST_CALLS, min(settings.calls, fitting))
        drawing_s = settings.rounds * 2 * settings.calls * sum(each.ready.input_seconds for each in contenders)
        fresh = drawing_s <= FRESH_SHARE * settings.limit_s
        started = time.monotonic()
        rounds = settings.rounds
        number = 0
        while number < rounds and (number < FEWEST_ROUNDS or time.monotonic() - started < settings.limit_s):
            self._on_progress(f"timing, round {number + 1} of {rounds}")
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                self._turn(contender, number, fresh)
            number += 1
            if number == 1 and contenders[0].name == "candidate" and _hopeless(contenders[0], contenders[1]):
                rounds = min(rounds, FEWEST_ROUNDS)

    def _turn(self, contender: ContenderProcess, number: int, fresh: bool) -> None:
        calls = contender.calls
        start = self._derive(f"start {number}")
        given = []
        for call in range(2 * calls):
            # Another set than the call before had; the same order for every contender.
            slot = (start + call) % len(self._input_seeds)
            seed = self._derive(f"inputs {number} {call}") if fresh else self._input_seeds[slot]
            given.append(Input(slot=slot, seed=seed))
        keep = self._derive("kept call") % calls if contender.name == "candidate" and number == 0 else None
        times = contender.turn(
            tuple(given[:calls]), tuple(given[calls:]), keep=keep, keep_seed=self._derive("kept elements") % (1 << 30)
        )
        if contender.name == "candidate":
            _check_untouched(times)
        if keep is not None:
            self._kept = (times.kept, given[keep])

    # --- checks ---

    def _check_claims(self, contender: ContenderProcess, eager: ContenderProcess) -> None:
        """Hold the candidate's times against what its process can't change."""
        device_us, wall_us = statistics.median(contender.device_us), statistics.median(contender.wall_us)
        left = statistics.median(contender.leftover_us) - statistics.median(eager.leftover_us)
        if left > LEFTOVER_US + LEFTOVER_SHARE * device_us:
            raise Stopped(
                Cheated(
                    gate="profile",
                    check="work after the call",
                    message=f"The device was busy for {left:.0f} us after a call had ended, and the call itself took "
                    f"{device_us:.0f} us: work runs on a stream that nobody waits for. Make torch's current stream wait "
                    "for it, or launch on the stream that launchers are given.",
                )
            )
        beyond = statistics.median(contender.unaccounted_us) - statistics.median(eager.unaccounted_us)
        if beyond > UNACCOUNTED_US + UNACCOUNTED_SHARE * (device_us + wall_us):
            raise Stopped(
                Cheated(
                    gate="profile",
                    check="reported times",
                    message=f"The candidate's process reported {device_us:.0f} us of device time and {wall_us:.0f} us of "
                    f"wall time a call, but its turns took {beyond:.0f} us a call more than that, beyond what the "
                    "reference's take: the times it reported are not those of its calls.",
                )
            )

    def _check_result(self, contender: ContenderProcess, eager: ContenderProcess) -> None:
        """Compare what a randomly chosen timed call returned with the reference."""
        assert self._kept is not None
        kept, given = self._kept
        for index in range(len(kept)):
            self._hand_over(contender.folder / f"kept-{index}.bin", eager.folder)
        dtypes = [each.dtype for each in kept] or ["float32"]
        tolerance = 10 * max(base_rtol(self._protocol, dtype, self._description.precision) for dtype in dtypes)
        if self._description.tolerance is not None:
            tolerance = max(tolerance, self._description.tolerance.rtol)
        check = Check(input=given, kept=kept, keep_seed=self._derive("kept elements") % (1 << 30), tolerance=tolerance)
        checked = eager.ask(check, Checked, 120.0)
        if checked.structure:
            raise Stopped(
                BrokeContract(
                    gate="profile",
                    check="result of a timed call",
                    message=f"A timed call returned another structure than verified calls did: {checked.structure}.",
                    case=self._case,
                    seed=self._seed,
                )
            )
        for index, difference in enumerate(checked.differences):
            if difference.bad > WRONG_SHARE * difference.compared:
                raise Stopped(self._wrong(index, kept[index], difference))
        self._check_floor(contender, eager, kept)

    def _hand_over(self, path: Path, folder: Path) -> None:
        """Move a kept output to the reference's process; the file is the candidate's word."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return  # an output without elements, or the reference's process finds it missing
        if not stat.S_ISREG(found.st_mode):
            raise Stopped(
                Cheated(
                    gate="profile",
                    check="result of a timed call",
                    message=f"{path.name} in the job's folder is no regular file: the candidate put something in the "
                    "place of the result that was kept.",
                )
            )
        shutil.move(path, folder / path.name)

    def _check_floor(self, contender: ContenderProcess, eager: ContenderProcess, kept: tuple[KeptOutput, ...]) -> None:
        """Refuse a time in which the outputs can't have been written to memory."""
        written = sum(int(np.prod(each.shape)) * _item_bytes(each.dtype) for each in kept)
        # What fits into L2 need not reach memory within the call.
        beyond_l2 = max(0, written - 2 * eager.ready.l2_bytes)
        floor = floor_us(moved_bytes=beyond_l2, bytes_per_us=FLOOR_FACTOR * eager.ready.fill_bytes_per_us)
        device_us = statistics.median(contender.device_us)
        if device_us < floor <= statistics.median(eager.device_us):
            raise Stopped(
                BrokeContract(
                    gate="profile",
                    check="memory floor",
                    message=f"A call took {device_us:.1f} us of device time, and writing its {written / 1e6:.0f} MB of "
                    f"outputs takes {floor:.0f} us at twice the measured bandwidth. Write every element within the "
                    "call; a result that is an expanded view must be made contiguous.",
                    case=self._case,
                    seed=self._seed,
                )
            )

    def _wrong(self, index: int, kept: KeptOutput, difference: Difference) -> WrongOutput:
        first: tuple[int, ...] = ()
        if difference.first_bad is not None:
            # Complex numbers are compared as pairs of reals.
            flat = difference.first_bad // (2 if kept.dtype.startswith("complex") else 1)
            first = tuple(int(i) for i in np.unravel_index(flat, kept.shape)) if kept.shape else ()
        return WrongOutput(
            gate="profile",
            check="result of a timed call",
            message=f"The result of a timed call is wrong though verified calls were right: output {index} has "
            f"{difference.bad} wrong values of {difference.compared} compared, the first at index {list(first)}: "
            f"expected {difference.expected}, got {difference.got}. Compute every call anew; look for a race.",
            case=self._case,
            seed=self._seed,
            output=index,
            first_bad_index=first,
            expected=difference.expected,
            got=difference.got,
            bad_count=difference.bad,
            total_count=difference.compared,
            max_abs_error=difference.max_abs_error,
        )

    # --- small facts ---

    def _key(self) -> BaselineKey:
        return BaselineKey(
            problem=self._problem.id,
            case=self._case,
            protocol=self._protocol.name,
            precision=self._description.precision,
            gpu=self._device.model,
            driver=self._device.driver,
            cpu=_processor(),
            torch=installed_torch().version,
            triton=_triton_version(),
            python=platform.python_version(),
            stopwatch=_stopwatch_version(),
        )

    def _tf32(self) -> Tf32:
        if self._protocol.tf32 == "as torch ships":
            return "as torch ships"
        return "on" if self._description.precision == "tf32" else "off"

    def _derive(self, label: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed}\0{label}".encode()).digest()[:6], "big")


def _hopeless(candidate: ContenderProcess, reference: ContenderProcess) -> bool:
    return statistics.median(candidate.device_us) > HOPELESS * statistics.median(reference.device_us)


def _check_untouched(times: RoundTimes) -> None:
    if not times.changed:
        return
    names = ", ".join(times.changed)
    if all("tf32" in name or "fp32" in name for name in times.changed):
        raise Stopped(
            BrokeContract(
                gate="profile",
                check="precision switches",
                message=f"A call left {names} changed. Leave torch's precision switches alone: the problem's declared "
                "precision decides, for the reference and for the candidate.",
            )
        )
    raise Stopped(
        Cheated(
            gate="profile",
            check="clocks",
            message=f"The candidate replaced {names} in its process. Times are taken elsewhere; leave these as they are.",
        )
    )


def _item_bytes(dtype: str) -> int:
    """Bytes of one element; 1 for types that numpy lacks, which makes the floor lower."""
    try:
        return np.dtype("float16" if dtype == "bfloat16" else dtype).itemsize
    except TypeError:
        return 1


def _processor() -> str:
    """Return the model of this machine's processor, which launches the kernels."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.processor())


def _triton_version() -> str:
    """Return the installed version, empty where there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _stopwatch_version() -> str:
    """Return a hash of the measuring process's own source."""
    worker = resources.files("cuda_agent").joinpath("worker")
    digest = hashlib.sha256()
    for name in ("stopwatch.py", "device_clock.py"):
        digest.update(worker.joinpath(name).read_bytes())
    return digest.hexdigest()[:16]
