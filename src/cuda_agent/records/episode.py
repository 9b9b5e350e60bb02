"""An episode: the turns of one policy working on one problem."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cuda_agent.records.evidence import Evidence
from cuda_agent.records.graph import TracedGraph
from cuda_agent.records.problem import Problem, ProblemDescription


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy asks the environment to do."""

    tool: str
    """`list`, `read`, `write`, `edit`, `compile`, `verify`, `profile` or `submit`."""
    arguments: dict[str, Any] = {}
    thought: str = ""
    """Why, in the policy's words; shown live and stored."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment answers."""

    ok: bool
    text: str
    """Short structured text for a model to read."""
    data: dict[str, Any] = {}
    """The same facts as plain data, for policies that are programs."""
    seconds: float = 0.0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call and its answer."""

    number: int
    call: ToolCall
    result: ToolResult


class Briefing(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is given at the start of an episode."""

    problem: Problem
    description: ProblemDescription
    graph: TracedGraph | None
    """None when the reference can't be traced; `untraced` says why."""
    untraced: str
    device: str
    architecture: str
    multiprocessors: int
    """Streaming multiprocessors of the device; 0 on the emulated device."""
    turn_limit: int
    time_limit_s: float


EndReason = Literal["submitted", "gave up", "turn budget", "time budget"]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an episode ended."""

    reason: EndReason
    note: str
    """The policy's closing words, such as which part of the problem it can't do."""
    turns: int
    best: Evidence | None = None
    """Best judged candidate of the episode."""
    final: Evidence | None = None
    """Last judged candidate."""
    build_seconds: float
    gate_seconds: float
    wall_seconds: float
