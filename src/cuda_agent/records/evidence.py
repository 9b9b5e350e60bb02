"""Evidence: everything a stranger needs to re-run and challenge one judgement."""

from __future__ import annotations

import msgspec

from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.protection import Protections
from cuda_agent.records.verdict import GateReport, OutputError, Verdict

SCHEMA_VERSION = 1


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Where a candidate was judged."""

    name: str
    """`emulated` or `cuda:0`."""
    model: str
    """`NVIDIA H200`, or `emulated device (CPU)`."""
    architecture: str
    """Build target: `sm_90a`; `compute_90a` on the emulated device."""
    driver: str
    """Driver version; empty on the emulated device."""
    multiprocessors: int = 0
    """Streaming multiprocessors; 0 on the emulated device."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Versions that can change a result."""

    cuda_agent: str
    python: str
    torch: str
    toolkit: str
    host_compiler: str
    platform: str
    cpu_count: int


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """The training signal of one verdict."""

    value: float | None
    """None: no signal (a problem's or machine's fault)."""
    rule: str
    """`milestones`."""
    why: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One judgement with all that went into it."""

    schema_version: int
    created: str
    """UTC, ISO 8601."""
    command: str
    """A command line that re-runs this judgement from the run folder."""
    protocol: str
    seed: int
    """Root seed; every trial's seed is derived from it."""
    device: Device
    environment: Environment
    problem: Problem
    description: ProblemDescription | None
    candidate: Candidate
    build: Build | None
    protections: Protections | None
    """Rights that the candidate's process had given up; None when none was started."""
    gates: tuple[GateReport, ...]
    errors: tuple[OutputError, ...]
    verdict: Verdict
    reward: Reward
