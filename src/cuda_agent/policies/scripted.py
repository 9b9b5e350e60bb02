"""A policy that makes a fixed list of calls."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.errors import UserError
from cuda_agent.policies.contract import Stop
from cuda_agent.records.episode import Briefing, ToolCall, ToolResult, Turn


class Scripted:
    """Makes the calls it was given, in order, whatever they answer."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = tuple(calls)
        self.heard: list[ToolResult] = []
        """Every answer so far, for tests and replays to look at."""

    def begin(self, briefing: Briefing, past: Sequence[Turn]) -> _Script:
        """Start, or go on after the turns in `past`; raises `UserError` when those are not the script's."""
        made = tuple(turn.call for turn in past)
        if made != self._calls[: len(made)]:
            raise UserError("The stored turns are not the beginning of this script; start a new run.")
        return _Script(self._calls[len(made) :], self.heard)


class _Script:
    def __init__(self, calls: tuple[ToolCall, ...], heard: list[ToolResult]) -> None:
        self._left = list(calls)
        self._heard = heard

    def next(self, result: ToolResult | None) -> ToolCall | Stop:
        if result is not None:
            self._heard.append(result)
        return self._left.pop(0) if self._left else Stop("the script is at its end")
