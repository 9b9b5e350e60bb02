"""Rewards follow the paper's milestones, on interval bounds."""

from __future__ import annotations

from typing import Literal

import pytest

from cuda_agent.records.timing import Interval, Speedup, Timing
from cuda_agent.records.verdict import (
    BrokeContract,
    BuildFailed,
    Cheated,
    Crashed,
    MachineFault,
    Passed,
    ProblemFault,
    SourceRejected,
    TimedOut,
    Verdict,
    WrongOutput,
)
from cuda_agent.rewards import milestones, raw_speedup

Baseline = Literal["eager", "compiled", "max-autotune"]


def speedup(baseline: Baseline, low: float, point: float | None = None) -> Speedup:
    interval = Interval(point=point or low * 1.01, low=low, high=(point or low) * 1.05)
    wall = Interval(point=0.5, low=0.4, high=0.6)
    return Speedup(baseline=baseline, device=interval, wall=wall, how="side by side")


def passed(*speedups: Speedup) -> Passed:
    timing = Timing(
        case="default",
        times=(),
        speedups=speedups,
        samples=(),
        before=None,
        after=None,
        baseline_failures={},
    )
    return Passed(gate="profile", check="timing", message="", timing=timing)


REJECTIONS: tuple[Verdict, ...] = (
    SourceRejected(gate="source", check="c", message="m"),
    BuildFailed(gate="compile", check="c", message="m"),
    Crashed(gate="verify", check="c", message="m"),
    TimedOut(gate="profile", check="c", message="m", limit_s=1.0),
    WrongOutput(
        gate="verify",
        check="c",
        message="m",
        case="default",
        seed=1,
        output=0,
        first_bad_index=(0,),
        expected="1",
        got="2",
        bad_count=1,
        total_count=1,
        max_abs_error=1.0,
    ),
    BrokeContract(gate="verify", check="c", message="m"),
    Cheated(gate="profile", check="c", message="m"),
)

FAULTS: tuple[Verdict, ...] = (
    ProblemFault(gate="verify", check="c", message="m"),
    MachineFault(gate="profile", check="c", message="m"),
)


@pytest.mark.parametrize("verdict", REJECTIONS, ids=lambda v: type(v).__name__)
def test_every_rejection_scores_minus_one(verdict: Verdict) -> None:
    assert milestones(verdict).value == -1.0
    assert raw_speedup(verdict).value == -1.0
    assert milestones(verdict).why == f"rejected at {verdict.gate}: c"


@pytest.mark.parametrize("verdict", FAULTS, ids=lambda v: type(v).__name__)
def test_faults_give_no_signal(verdict: Verdict) -> None:
    assert milestones(verdict).value is None
    assert raw_speedup(verdict).value is None


def test_a_pass_on_the_emulated_device_scores_correct_and_no_speed() -> None:
    verdict = Passed(gate="verify", check="values", message="", timing=None)
    assert milestones(verdict).value == 1.0
    assert raw_speedup(verdict).value is None


# 1 / 0.95 = 1.052631...: a lower bound of 1.0526 saves 4.997 %, 1.0527 saves 5.006 %.
@pytest.mark.parametrize(
    ("eager_low", "compiled_low", "value"),
    [
        (2.0, 2.0, 3.0),
        (1.0527, 1.0527, 3.0),
        (1.0526, 1.0527, 1.0),  # faster than compiled, not than eager: 1, as in the paper
        (1.0527, 1.0526, 2.0),
        (1.0526, 1.0526, 1.0),
        (1.06, 1.04, 2.0),
        (0.5, 0.5, 1.0),
        (1.05, 3.0, 1.0),  # 1.05 saves 4.76 %, not 5 %
    ],
)
def test_milestones_against_hand_computed_values(eager_low: float, compiled_low: float, value: float) -> None:
    verdict = passed(speedup("eager", eager_low), speedup("compiled", compiled_low))
    assert milestones(verdict).value == value


def test_exactly_five_percent_is_not_more_than_five_percent() -> None:
    # 20 us down to 19 us saves exactly 5 %.
    assert milestones(passed(speedup("eager", 20 / 19), speedup("compiled", 2.0))).value == 1.0


def test_the_lower_bound_decides_not_the_point() -> None:
    verdict = passed(speedup("eager", 1.5), speedup("compiled", low=1.02, point=1.30))
    assert milestones(verdict).value == 2.0
    assert "1.300x compiled [1.020, 1.365] does not clear 1.0526" in milestones(verdict).why


def test_max_autotune_pays_and_costs_nothing() -> None:
    verdict = passed(speedup("eager", 1.5), speedup("compiled", 1.5), speedup("max-autotune", 0.5))
    assert milestones(verdict).value == 3.0


def test_a_problem_that_torch_compile_fails_on_pays_at_most_two() -> None:
    verdict = passed(speedup("eager", 9.0))
    assert milestones(verdict).value == 2.0
    assert milestones(verdict).why.endswith("compiled not measured")
    assert raw_speedup(verdict).value is None


def test_raw_speedup_is_the_point_over_compiled() -> None:
    verdict = passed(speedup("eager", 9.0), speedup("compiled", low=1.02, point=1.30))
    assert raw_speedup(verdict).value == 1.30
