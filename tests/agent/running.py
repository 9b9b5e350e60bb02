"""Runs an episode in process, as `cuda-agent optimize` does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cuda_agent import assemble
from cuda_agent.agent.loop import Budget, Episode
from cuda_agent.gates.devices import open_device
from cuda_agent.policies.composer import Composer
from cuda_agent.policies.contract import Policy
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.episode import Ending, Turn
from cuda_agent.records.problem import Problem
from cuda_agent.records.run import RUN_SCHEMA_VERSION, Run
from cuda_agent.store.run_folder import RunFolder

PROBLEMS = Path(__file__).parent / "problems"


def optimize(
    problem: str, path: Path, *, policy: Policy | None = None, turns: int = 40, seconds: float = 240.0
) -> tuple[Ending, Sequence[Turn]]:
    """Run one episode on the emulated device in a fresh run folder; return how it ended and its turns."""
    loaded = load_problem(problem)
    folder = RunFolder.create(
        path,
        Run(
            schema_version=RUN_SCHEMA_VERSION,
            purpose="optimize",
            created="2026-12-01T00:00:00Z",
            problem=loaded,
            device="emulated",
            protocol="strict",
            policy="composer",
            seed=None,
            turn_limit=turns,
            time_limit_s=seconds,
        ),
    )
    return go_on(folder, policy or Composer()), folder.turns.read()


def go_on(folder: RunFolder, policy: Policy) -> Ending:
    """Run what is left of the episode in `folder`."""
    run = folder.run
    with quiet_session(run.problem) as session:
        return Episode(
            folder=folder,
            judge=session.judge,
            policy=policy,
            briefing=session.briefing(turn_limit=run.turn_limit, time_limit_s=run.time_limit_s),
            budget=Budget(run.turn_limit, run.time_limit_s),
            on_call=lambda number, call: None,
            on_turn=lambda turn: None,
        ).run()


def quiet_session(problem: Problem) -> AbstractContextManager[assemble.Session]:
    """Open a session on the emulated device that prints nothing."""
    return assemble.open_session(
        problem,
        device=open_device("emulated"),
        protocol="strict",
        seed=None,
        on_report=lambda report: None,
        on_progress=lambda gate, text: None,
    )
