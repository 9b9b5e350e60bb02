"""The paper's ablation: the reward is the measured speed-up over torch.compile."""

from __future__ import annotations

from cuda_agent.records.evidence import Reward
from cuda_agent.records.verdict import MachineFault, Passed, ProblemFault, Verdict

RULE = "raw speed-up"


def raw_speedup(verdict: Verdict) -> Reward:
    """Score a verdict with t_compiled / t_candidate in device time, -1 when rejected.

    The point estimate is used, as in the paper; that outliers and easy problems dominate it is what the
    ablation shows. A pass that has no such ratio (emulated device, or torch.compile failed on the problem)
    gives no signal: 1.0 would claim that a speed-up of 1 was measured.

    Source: CUDA Agent (arXiv 2602.24286), ablation "w/o robust reward".
    """
    if isinstance(verdict, ProblemFault | MachineFault):
        return Reward(value=None, rule=RULE, why=f"no signal: fault at {verdict.gate}")
    if not isinstance(verdict, Passed):
        return Reward(value=-1.0, rule=RULE, why=f"rejected at {verdict.gate}: {verdict.check}")
    if verdict.timing is not None:
        for speedup in verdict.timing.speedups:
            if speedup.baseline == "compiled":
                return Reward(value=speedup.device.point, rule=RULE, why=f"{speedup.device.point:.3f}x compiled")
    return Reward(value=None, rule=RULE, why="no signal: correct, but no time against compiled was measured")
