"""The paper's milestone reward, on interval bounds instead of point estimates."""

from __future__ import annotations

from cuda_agent.records.evidence import Reward
from cuda_agent.records.timing import Speedup, Timing
from cuda_agent.records.verdict import MachineFault, Passed, ProblemFault, Verdict

RULE = "milestones"

MARGIN = 0.05
"""Share of the baseline's time that must be saved: b(t, t0) = [(t0 - t) / t0 > 5 %]."""


def milestones(verdict: Verdict) -> Reward:
    """Score a verdict: -1 rejected, 1 correct, 2 faster than eager, 3 faster than eager and compiled.

    "Faster" means (t0 - t) / t0 > 5 %, that is a speed-up t0 / t above 1 / 0.95 = 1.0526, and the lower bound
    of the speed-up's 95 % interval must clear it, not the point. Times are device times. "Compiled" is
    torch.compile in its default mode, as in the paper, under either protocol; max-autotune is measured and
    reported but pays nothing. Being faster than compiled but not than eager is 1, as in the paper. Where
    compiled could not be measured nothing can be said of it, so at most 2. A pass without a timing (emulated
    device) is 1.

    Source: CUDA Agent (arXiv 2602.24286), equation 1. Device speed-ups of [1.06, 1.10] over eager and
    [1.04, 1.20] over compiled give 2: 1.06 clears 1.0526 and 1.04 does not.
    """
    if isinstance(verdict, ProblemFault | MachineFault):
        return Reward(value=None, rule=RULE, why=f"no signal: {_words(verdict)} at {verdict.gate}")
    if not isinstance(verdict, Passed):
        return Reward(value=-1.0, rule=RULE, why=f"rejected at {verdict.gate}: {verdict.check}")
    if verdict.timing is None:
        return Reward(value=1.0, rule=RULE, why="correct; not measured")
    return _faster(verdict.timing)


def clears_margin(speedup: Speedup | None) -> bool:
    """Return whether the lower bound of the device speed-up saves more than 5 % of the baseline's time."""
    # Written with the time saved, 1 - 1/s, which is the paper's form; equality does not clear.
    return speedup is not None and 1.0 - 1.0 / speedup.device.low > MARGIN


def _faster(timing: Timing) -> Reward:
    eager = _against(timing, "eager")
    compiled = _against(timing, "compiled")
    why = f"correct; {_describe('eager', eager)}; {_describe('compiled', compiled)}"
    if not clears_margin(eager):
        return Reward(value=1.0, rule=RULE, why=why)
    return Reward(value=3.0 if clears_margin(compiled) else 2.0, rule=RULE, why=why)


def _against(timing: Timing, baseline: str) -> Speedup | None:
    return next((speedup for speedup in timing.speedups if speedup.baseline == baseline), None)


def _describe(baseline: str, speedup: Speedup | None) -> str:
    if speedup is None:
        return f"{baseline} not measured"
    verb = "clears" if clears_margin(speedup) else "does not clear"
    point, low, high = speedup.device.point, speedup.device.low, speedup.device.high
    return f"{point:.3f}x {baseline} [{low:.3f}, {high:.3f}] {verb} {1 / (1 - MARGIN):.4f}"


def _words(fault: ProblemFault | MachineFault) -> str:
    return "the problem's fault" if isinstance(fault, ProblemFault) else "the machine's fault"
