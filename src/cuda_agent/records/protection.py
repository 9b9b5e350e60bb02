"""What stands between a candidate's process and the rest of the machine."""

from __future__ import annotations

from typing import Literal

import msgspec

Right = Literal["read files", "write files", "network", "programs", "other processes", "caller's user"]
"""What is taken away: reading and writing files beyond its own and the system's libraries, opening sockets, starting
programs, signalling or inspecting other processes, and being the user who started the judge (root only)."""

RIGHTS: tuple[Right, ...] = (
    "read files",
    "write files",
    "network",
    "programs",
    "other processes",
    "caller's user",
)


class Protections(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine let a process give up, before it loaded a candidate."""

    taken: tuple[Right, ...]
    """Taken away for good."""
    left: dict[str, str]
    """What could not be taken away, with the reason."""
