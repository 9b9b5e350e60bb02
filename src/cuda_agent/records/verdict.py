"""What a judge says of a candidate, as a tagged union: only a passed verdict can hold a timing."""

from __future__ import annotations

from typing import Literal

import msgspec

from cuda_agent.records.candidate import Diagnostic
from cuda_agent.records.timing import Timing

Gate = Literal["source", "compile", "verify", "sanitize", "profile"]


class _Verdict(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    gate: Gate
    check: str
    """Short name of the check that decided, such as `output shape` or `nvcc`."""
    message: str
    """What was asked, what was found, what to do: enough for a programmer to fix it."""


class SourceRejected(_Verdict, frozen=True, kw_only=True, tag="source-rejected"):
    """The source gate found something that can't be judged or is not allowed."""


class BuildFailed(_Verdict, frozen=True, kw_only=True, tag="build-failed"):
    """The compile gate failed."""

    diagnostics: tuple[Diagnostic, ...] = ()


class Crashed(_Verdict, frozen=True, kw_only=True, tag="crashed"):
    """The candidate raised, faulted, or died of a signal."""

    case: str = ""
    seed: int | None = None


class TimedOut(_Verdict, frozen=True, kw_only=True, tag="timed-out"):
    """The candidate (or its build) used up its wall time."""

    limit_s: float


class WrongOutput(_Verdict, frozen=True, kw_only=True, tag="wrong-output"):
    """A value differs from the oracle beyond the tolerance."""

    case: str
    """Name of the shape case."""
    seed: int
    """Seed that replays this trial with `judge --seed`."""
    output: int
    """Index of the output tensor."""
    first_bad_index: tuple[int, ...]
    expected: str
    """Expected value at that index, as text so that NaN and integers survive."""
    got: str
    bad_count: int
    total_count: int
    max_abs_error: float | None
    """Largest |candidate - oracle| over finite pairs; None when no pair was finite."""


class BrokeContract(_Verdict, frozen=True, kw_only=True, tag="broke-contract"):
    """Structure is wrong: count, shape, dtype, device, parameters, changed inputs, an aliased result."""

    case: str = ""
    seed: int | None = None


class Cheated(_Verdict, frozen=True, kw_only=True, tag="cheated"):
    """Intent-like behaviour: the result or the time was faked."""


class Passed(_Verdict, frozen=True, kw_only=True, tag="passed"):
    """Every gate that could run on this device passed."""

    timing: Timing | None
    """None on the emulated device: not measured."""


class ProblemFault(_Verdict, frozen=True, kw_only=True, tag="problem-fault"):
    """The problem itself is unusable; nobody is paid or punished."""


class MachineFault(_Verdict, frozen=True, kw_only=True, tag="machine-fault"):
    """The machine failed, or lacks what this candidate needs; to be retried, never paid."""


Verdict = (
    SourceRejected
    | BuildFailed
    | Crashed
    | TimedOut
    | WrongOutput
    | BrokeContract
    | Cheated
    | Passed
    | ProblemFault
    | MachineFault
)

Rejection = SourceRejected | BuildFailed | Crashed | TimedOut | WrongOutput | BrokeContract | Cheated
"""The verdicts that are the candidate's fault: reward -1, exit code 1."""


class OutputError(msgspec.Struct, frozen=True, kw_only=True):
    """Error of one output tensor in one trial against the float64 oracle."""

    case: str
    seed: int
    output: int
    max_abs_error: float
    relative_rms_error: float
    """||candidate - oracle|| / ||oracle||, 0 when both are zero."""
    reference_relative_rms_error: float | None
    """The same of the reference itself at the declared precision; None under protocol `paper`."""
    rtol: float
    atol: float
    worst_ratio: float
    """max |candidate - oracle| / (atol + rtol |oracle|); 1.0 is the edge of acceptance."""


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's own verdict, stored on its own."""

    gate: Gate
    status: Literal["passed", "rejected", "not measured", "not run", "fault"]
    message: str
    """One line: why, or the figure that matters."""
    seconds: float
    """Wall time spent in the gate."""
