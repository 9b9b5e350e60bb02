"""The seam between the agent loop and whoever decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_agent.records.episode import Briefing, ToolCall, ToolResult, Turn


@dataclass(frozen=True)
class Stop:
    """The policy is done."""

    message: str
    """Why, for a person; says which part of the problem could not be done, if any."""
    gave_up: bool = False
    """No candidate was submitted, or not all that was asked could be tried."""


class Conversation(Protocol):
    """One policy at work on one problem."""

    def next(self, result: ToolResult | None) -> ToolCall | Stop:
        """Return the next call, given the answer to the last one; None at the first call of a new episode.

        The loop calls it again only after carrying out the call before, and not after a `Stop`.
        """
        ...


class Policy(Protocol):
    """Decides what to try next."""

    def begin(self, briefing: Briefing, past: Sequence[Turn]) -> Conversation:
        """Start an episode, or take one up again after the turns in `past`.

        A conversation taken up again gets the result of the last past turn as its first `next`.

        Raises:
            UserError: the past turns are not ones this policy would have made.
        """
        ...
