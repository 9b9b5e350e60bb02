"""The training signal of a verdict: the paper's milestones, and raw speed-up as its ablation.

Pure functions of a stored verdict, so a run can be scored again without a GPU.
"""

from cuda_agent.rewards.milestones import milestones
from cuda_agent.rewards.raw_speedup import raw_speedup

__all__ = ["milestones", "raw_speedup"]
