"""Finds out what confinement is worth on this machine: enters it, then tries what it should have made impossible.

`python -m cuda_agent.worker.protections` prints a `Protections` record as JSON. torch is not imported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from cuda_agent.records import codec
from cuda_agent.records.protection import Protections, Right
from cuda_agent.worker import confinement


def main() -> None:
    """Print what holds."""
    status = 1
    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as own:
        secret = Path(outside, "secret")
        secret.write_text("secret")
        child = os.fork()
        if child == 0:
            try:
                protections = confinement.enter(reads=[], writes=[own])
                os.write(1, codec.encode(tried(protections, secret)) + b"\n")
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def tried(protections: Protections, secret: Path) -> Protections:
    """Return `protections` without those that an attempt got past."""
    attempts: dict[Right, Callable[[], object]] = {
        "read files": secret.read_text,
        "write files": lambda: secret.with_name("planted").write_text("planted"),
        "network": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(("127.0.0.1", 9)),
        "programs": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "other processes": lambda: os.kill(os.getppid(), 0),
    }
    left = dict(protections.left)
    for right, attempt in attempts.items():
        if right not in left and not _is_refused(attempt):
            left[right] = "the machine says it is taken away, and an attempt went through all the same"
    if "caller's user" not in left and os.getuid() == 0:
        left["caller's user"] = "still root"
    return msgspec.structs.replace(
        protections, taken=tuple(right for right in protections.taken if right not in left), left=left
    )


def _is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


if __name__ == "__main__":
    main()
