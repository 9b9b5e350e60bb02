"""A run: one `optimize` or `judge` call and the folder it fills."""

from __future__ import annotations

from typing import Literal

import msgspec

from cuda_agent.records.problem import Problem

RUN_SCHEMA_VERSION = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked to do; written before its first turn and never changed."""

    schema_version: int
    purpose: Literal["optimize", "judge"]
    created: str
    """UTC, ISO 8601."""
    problem: Problem
    device: str
    protocol: str
    policy: str
    """Empty for `judge`."""
    seed: int | None
    """Root seed of every judgement, as it was given; None draws a fresh secret one each time."""
    turn_limit: int
    time_limit_s: float
