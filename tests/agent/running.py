"""Runs an episode in process, as `cuda-agent optimize` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cuda_agent import assemble
from cuda_agent.agent.loop import Budget, Episode
from cuda_agent.gates.devices import open_device
from cuda_agent.policies.composer import Composer
from cuda_agent.policies.contract import Policy
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.episode import Ending, Turn
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
    with assemble.open_session(
        loaded,
        device=open_device("emulated"),
        protocol="strict",
        seed=None,
        on_report=lambda report: None,
        on_progress=lambda gate, text: None,
    ) as session:
        ending = Episode(
            folder=folder,
            judge=session.judge,
            policy=policy or Composer(),
            briefing=session.briefing(turn_limit=turns, time_limit_s=seconds),
            budget=Budget(turns, seconds),
            on_call=lambda number, call: None,
            on_turn=lambda turn: None,
        ).run()
    return ending, folder.turns.read()
