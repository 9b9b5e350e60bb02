"""The pipeline of gates: source, compile, verify, profile, each with its own stored report.

Passing one gate implies nothing about another; the first rejection ends the judgement. Nothing here loads the
candidate: it only starts processes that do, and reads what they report.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from cuda_agent.errors import CandidateError, MachineError
from cuda_agent.gates.compile import CompileGate
from cuda_agent.gates.profile import ProfileGate, ProfileSettings
from cuda_agent.gates.protocols import VerifyProtocol
from cuda_agent.gates.source import SourceGate
from cuda_agent.gates.verify import Verified, VerifyGate
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.evidence import SCHEMA_VERSION, Device, Environment, Evidence, Reward
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.protection import Protections
from cuda_agent.records.timing import Timing
from cuda_agent.records.verdict import (
    Gate,
    GateReport,
    MachineFault,
    OutputError,
    Passed,
    ProblemFault,
    SourceRejected,
    Verdict,
)

GATES: tuple[Gate, ...] = ("source", "compile", "verify", "profile")

_Status = Literal["passed", "rejected", "not measured", "not run", "fault"]

FROM_CACHE = "from the build cache"
NOT_MEASURED = "not measured: the emulated device has no time"


class Judge:
    """Judges candidates for one problem on one device under one protocol.

    The description of the problem is asked for only when the verify gate needs it, so that whoever builds a
    judge can let the problem be inspected while the candidate compiles.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        describe: Callable[[], ProblemDescription],
        device: Device,
        environment: Environment,
        protocol: VerifyProtocol,
        seed: int | None,
        source: SourceGate,
        compile: CompileGate,
        verify: VerifyGate,
        profile: ProfileGate,
        quick: ProfileSettings,
        final: ProfileSettings,
        reward: Callable[[Verdict], Reward],
        on_report: Callable[[GateReport], None],
        on_progress: Callable[[Gate, str], None],
    ) -> None:
        """Take the parts; `seed` None draws a fresh secret root seed for every judgement."""
        self._problem = problem
        self._describe = describe
        self._device = device
        self._environment = environment
        self._protocol = protocol
        self._seed = seed
        self._source = source
        self._compile = compile
        self._verify = verify
        self._profile = profile
        self._quick = quick
        self._final = final
        self._reward = reward
        self._on_report = on_report
        self._on_progress = on_progress
        self._verified: dict[str, Verified] = {}

    def compile(self, candidate: Candidate) -> Build | Verdict:
        """Run the source and compile gates."""
        return _Judgement(self, candidate, self._fresh_seed()).build()

    def verify(self, candidate: Candidate) -> Verified | Verdict:
        """Run the gates up to verify, with fresh seeds."""
        return _Judgement(self, candidate, self._fresh_seed()).verified()

    def profile(self, candidate: Candidate) -> Evidence:
        """Run all gates with the quick timing settings, reusing a verify result of the same candidate."""
        return _Judgement(self, candidate, self._fresh_seed()).evidence(self._quick, reuse=True)

    def judge(self, candidate: Candidate) -> Evidence:
        """Run all gates with the final timing settings and fresh seeds."""
        return _Judgement(self, candidate, self._fresh_seed()).evidence(self._final, reuse=False)

    def _fresh_seed(self) -> int:
        # 53 bits, so that a seed survives JSON readers that know only doubles.
        return secrets.randbits(53) if self._seed is None else self._seed


class _Judgement:
    """One pass of one candidate through the gates."""

    def __init__(self, judge: Judge, candidate: Candidate, seed: int) -> None:
        self._judge = judge
        self._candidate = candidate
        self._seed = seed
        self._build: Build | None = None
        self._errors: tuple[OutputError, ...] = ()
        self._description: ProblemDescription | None = None
        self._protections: Protections | None = None
        self._reports: list[GateReport] = []

    def evidence(self, settings: ProfileSettings, *, reuse: bool) -> Evidence:
        """Run every gate and return what came of it."""
        judge = self._judge
        verdict = self._verdict(settings, reuse=reuse)
        reached = {report.gate for report in self._reports}
        for gate in GATES:
            if gate not in reached:
                self._report(gate, "not run", "an earlier gate ended the judgement", 0.0)
        return Evidence(
            schema_version=SCHEMA_VERSION,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=(
                f"cuda-agent judge problem.py CANDIDATE --device {judge._device.name} "
                f"--protocol {judge._protocol.name} --seed {self._seed}"
            ),
            protocol=judge._protocol.name,
            seed=self._seed,
            device=judge._device,
            environment=judge._environment,
            problem=judge._problem,
            description=self._description,
            candidate=self._candidate,
            build=self._build,
            protections=self._protections,
            gates=tuple(self._reports),
            errors=self._errors,
            verdict=verdict,
            reward=judge._reward(verdict),
        )

    def build(self) -> Build | Verdict:
        """Run the source and compile gates."""
        started = time.monotonic()
        refused = self._judge._source.check(self._candidate)
        if refused is not None:
            return self._rejected("source", refused, started)
        self._report("source", "passed", "parsed", time.monotonic() - started)
        self._judge._on_progress("compile", "building")
        started = time.monotonic()
        emulated = self._judge._device.name == "emulated"
        try:
            built = self._judge._compile.build(
                self._candidate,
                target="emulated" if emulated else "cuda",
                architectures=(self._judge._device.architecture,),
            )
        except CandidateError as error:
            return self._rejected("compile", SourceRejected(gate="compile", check="build", message=str(error)), started)
        except MachineError as error:
            return self._rejected("compile", _machine_fault("compile", error), started)
        if not isinstance(built, Build):
            return self._rejected("compile", built, started)
        self._build = built
        took = FROM_CACHE if built.cached else f"built in {built.seconds:.1f} s"
        self._report("compile", "passed", took, time.monotonic() - started)
        return built

    def verified(self, *, reuse: bool = False) -> Verified | Verdict:
        """Run the gates up to verify."""
        judge = self._judge
        build = self.build()
        if not isinstance(build, Build):
            return build
        started = time.monotonic()
        judge._on_progress("verify", "inspecting the problem")
        self._description = judge._describe()
        known = judge._verified.get(self._candidate.id) if reuse else None
        result: Verified | Verdict
        if known is not None:
            result = known
        else:
            try:
                result = judge._verify.check(
                    judge._problem,
                    self._description,
                    self._candidate,
                    build,
                    device=judge._device.name,
                    protocol=judge._protocol,
                    seed=self._seed,
                    on_progress=lambda text: judge._on_progress("verify", text),
                    on_confined=self._note_protections,
                )
            except MachineError as error:
                result = _machine_fault("verify", error)
        if not isinstance(result, Verified):
            return self._rejected("verify", result, started)
        judge._verified[self._candidate.id] = result
        self._errors = result.errors
        worst = max((error.max_abs_error for error in result.errors), default=0.0)
        where = "earlier, same candidate" if known is not None else f"{result.trials} trials"
        # What could not be checked belongs to the verdict, not to a line of progress that is overwritten.
        said = "; ".join([where, f"worst error {worst:.2g}", *result.notes])
        self._report("verify", "passed", said, time.monotonic() - started)
        return result

    def _note_protections(self, protections: Protections) -> None:
        self._protections = protections

    def _verdict(self, settings: ProfileSettings, *, reuse: bool) -> Verdict:
        judge = self._judge
        verified = self.verified(reuse=reuse)
        if not isinstance(verified, Verified):
            return verified
        if judge._device.name == "emulated":
            self._report("profile", "not measured", NOT_MEASURED, 0.0)
            return Passed(gate="verify", check="values", message="correct; " + NOT_MEASURED, timing=None)
        started = time.monotonic()
        assert self._build is not None
        assert self._description is not None
        try:
            timing = judge._profile.measure(
                judge._problem,
                self._description,
                self._candidate,
                self._build,
                device=judge._device,
                protocol=judge._protocol,
                settings=settings,
                seed=self._seed,
                on_progress=lambda text: judge._on_progress("profile", text),
            )
        except MachineError as error:
            return self._rejected("profile", _machine_fault("profile", error), started)
        if not isinstance(timing, Timing):
            return self._rejected("profile", timing, started)
        speeds = ", ".join(f"{s.device.point:.2f}x {s.baseline}" for s in timing.speedups)
        self._report("profile", "passed", speeds, time.monotonic() - started)
        return Passed(gate="profile", check="timing", message=f"correct and measured: {speeds}", timing=timing)

    def _rejected(self, gate: Gate, verdict: Verdict, started: float) -> Verdict:
        fault = isinstance(verdict, ProblemFault | MachineFault)
        first_line = verdict.message.partition("\n")[0]
        self._report(gate, "fault" if fault else "rejected", first_line, time.monotonic() - started)
        return verdict

    def _report(self, gate: Gate, status: _Status, message: str, seconds: float) -> None:
        report = GateReport(gate=gate, status=status, message=message, seconds=round(seconds, 3))
        self._reports.append(report)
        self._judge._on_report(report)


def _machine_fault(gate: Gate, error: MachineError) -> MachineFault:
    return MachineFault(gate=gate, check=type(error).__name__, message=str(error))
