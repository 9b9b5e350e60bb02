"""The agent loop: ask the policy, carry out what it asks for, tell it what came of it.

Every turn is stored before the next one starts, so that an interrupted episode goes on where it was. Only submitted
candidates count, and one replaces the best so far only when it is strictly better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cuda_agent.agent.environment import Environment
from cuda_agent.errors import CandidateError, CandidateFolderError
from cuda_agent.gates.judge import Judge
from cuda_agent.policies.contract import Policy, Stop
from cuda_agent.records.episode import Briefing, Ending, EndReason, ToolCall, Turn
from cuda_agent.records.evidence import Evidence
from cuda_agent.records.verdict import Passed
from cuda_agent.store.run_folder import RunFolder


@dataclass(frozen=True)
class Budget:
    """What an episode may use up."""

    turns: int
    seconds: float
    """Wall seconds of all turns together, those of an interrupted episode included."""


class Episode:
    """One policy at work on one problem, in one run folder."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        judge: Judge,
        policy: Policy,
        briefing: Briefing,
        budget: Budget,
        on_call: Callable[[int, ToolCall], None],
        on_turn: Callable[[Turn], None],
    ) -> None:
        """Take the parts; `on_call` hears what is about to be done, `on_turn` what came of it."""
        self._folder = folder
        self._policy = policy
        self._briefing = briefing
        self._budget = budget
        self._on_call = on_call
        self._on_turn = on_turn
        self._environment = Environment(folder.workspace, judge, self._judged)
        self._best = folder.best_evidence()
        self._final: Evidence | None = None

    def run(self) -> Ending:
        """Go on from the stored turns until the policy stops or a budget is used up; store how it ended.

        Raises:
            UserError: the stored turns are not the policy's, or the problem can't be judged.
            MachineError: a gate could not do its work; the turn is not stored and will be made again.
        """
        turns = list(self._folder.turns.read())
        self._folder.workspace.mkdir(exist_ok=True)
        conversation = self._policy.begin(self._briefing, turns)
        result = turns[-1].result if turns else None
        used = sum(turn.result.seconds for turn in turns)
        started = time.monotonic()
        while True:
            spent = used + time.monotonic() - started
            if len(turns) >= self._budget.turns:
                return self._out_of_budget("turn budget", f"{self._budget.turns} turns", len(turns), spent)
            if spent >= self._budget.seconds:
                return self._out_of_budget("time budget", f"{self._budget.seconds:.0f} s", len(turns), spent)
            call = conversation.next(result)
            if isinstance(call, Stop):
                return self._ended("gave up" if call.gave_up else "submitted", call.message, len(turns), spent)
            self._on_call(len(turns) + 1, call)
            result = self._environment.call(call)
            turn = Turn(number=len(turns) + 1, call=call, result=result)
            self._folder.turns.append(turn)
            turns.append(turn)
            self._on_turn(turn)

    def _judged(self, evidence: Evidence) -> None:
        self._final = evidence
        self._folder.add_verdict(evidence)
        if is_better(evidence, self._best):
            self._folder.promote(evidence)
            self._best = evidence

    def _out_of_budget(self, reason: EndReason, limit: str, turns: int, spent: float) -> Ending:
        """Judge what is in the workspace, unless something was submitted before, so that work is not lost."""
        note = f"The budget of {limit} is used up."
        if self._best is None and self._final is None:
            try:
                self._environment.candidate()
            except (CandidateError, CandidateFolderError):
                note += " The workspace holds no whole candidate."
            else:
                self._environment.call(ToolCall(tool="submit"))
                note += " What the workspace held was judged as it was."
        return self._ended(reason, note, turns, spent)

    def _ended(self, reason: EndReason, note: str, turns: int, spent: float) -> Ending:
        ending = Ending(
            reason=reason,
            note=note,
            turns=turns,
            best=self._best,
            final=self._final,
            build_seconds=round(self._environment.build_seconds, 3),
            gate_seconds=round(self._environment.gate_seconds, 3),
            wall_seconds=round(spent, 3),
        )
        self._folder.finish(ending)
        return ending


def is_better(evidence: Evidence, best: Evidence | None) -> bool:
    """Whether a judged candidate is strictly better than the best so far: reward first, then the slowest speed-up."""
    return isinstance(evidence.verdict, Passed) and (best is None or _rank(evidence) > _rank(best))


def _rank(evidence: Evidence) -> tuple[float, float]:
    timing = evidence.verdict.timing if isinstance(evidence.verdict, Passed) else None
    slowest = min((speedup.device.point for speedup in timing.speedups), default=0.0) if timing else 0.0
    reward = evidence.reward.value
    return (float("-inf") if reward is None else reward, slowest)
