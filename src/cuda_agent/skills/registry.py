"""Which skills there are, what generates their kernels, and which tunings are worth trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cuda_agent.skills.kernel_text import Generated, Tuning
from cuda_agent.skills.pointwise import kernel as pointwise
from cuda_agent.skills.program import Program
from cuda_agent.skills.row_program import kernel as row_program
from cuda_agent.skills.total_reduction import kernel as total_reduction


@dataclass(frozen=True)
class Skill:
    """One family of kernels; its guidance is the `SKILL.md` beside its generator."""

    generate: Callable[[Program, Tuning], Generated]
    tunings: tuple[dict[str, int | bool], ...]
    """Changes to the default tuning, in the order in which they are worth trying."""


SKILLS = {
    "pointwise": Skill(pointwise.generate, pointwise.TUNINGS),
    "row_program": Skill(row_program.generate, row_program.TUNINGS),
    "total_reduction": Skill(total_reduction.generate, total_reduction.TUNINGS),
}
