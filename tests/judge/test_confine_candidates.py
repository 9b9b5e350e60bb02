"""A candidate's process can't reach what it has no business with, while its own work goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cuda_agent.records.protection import RIGHTS, Right
from cuda_agent.records.verdict import Crashed, Passed
from tests.judge.judging import HERE, Court

SILU = HERE / "candidates" / "silu"
PROBLEM = str(HERE / "problems" / "silu.py")
IMPORT = "import torch\n"


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    with ExitStack() as stack:
        yield Court(stack)


@pytest.fixture(scope="module")
def secret() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "secret.txt")
        path.write_text("the seed is 7")
        yield path


@pytest.fixture(scope="module")
def taken(court: Court) -> tuple[Right, ...]:
    protections = court.judge(PROBLEM, SILU).protections
    assert protections is not None
    return protections.taken


def said_by(court: Court, code: str) -> str:
    """Return what a candidate's crash says that runs `code` when it is imported and raises what it found."""
    # As text, which the source gate does not look into: what holds here must hold without it.
    text = f"import torch\ntry:\n    exec({code!r})\n    found = 'done'\nexcept BaseException as error:\n    found = repr(error)\n"
    text += "raise RuntimeError(found)\n"
    verdict = court.judge(PROBLEM, SILU, {"model_new.py": [(IMPORT, text)]}).verdict
    assert isinstance(verdict, Crashed), verdict
    return verdict.message


REFUSED: dict[str, tuple[Right, str]] = {
    "a file of the judge": ("read files", "open({secret!r}).read()"),
    "the folder where judges keep their files": ("read files", "import os; os.listdir('/dev/shm')"),
    "the home folder": ("read files", "import os; os.listdir(os.path.expanduser('~'))"),
    "the references of the built-in suite": ("read files", "import cuda_agent.problems.suite"),
    "another process's command line": ("read files", "import os; open(f'/proc/{{os.getppid()}}/cmdline').read()"),
    "another process's environment": ("read files", "import os; open(f'/proc/{{os.getppid()}}/environ').read()"),
    "a new file beside the judge's": ("write files", "open({secret!r} + '.planted', 'w')"),
    "a changed file": ("write files", "open({secret!r}, 'a')"),
    "a socket": ("network", "import socket; socket.socket()"),
    "a local socket": ("network", "import socket; socket.socket(socket.AF_UNIX)"),
    "a compiler": ("programs", "import subprocess; subprocess.run(['g++', '--version'])"),
    "a shell": ("programs", "import os\nif os.system('true'): raise PermissionError('no shell')"),
    "a signal to its supervisor": ("other processes", "import os; os.kill(os.getppid(), 9)"),
    "a signal to everybody": ("other processes", "import os; os.kill(-1, 9)"),
    "a new namespace": (
        "other processes",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nif libc.unshare(0x10000000): raise PermissionError(ctypes.get_errno(), 'unshare')",
    ),
    "another process's memory": (
        "other processes",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nif libc.ptrace(16, os.getppid(), 0, 0): raise PermissionError(ctypes.get_errno(), 'ptrace')",
    ),
    "more rights": ("caller's user", "import os; os.setuid(0)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_candidate_is_refused(court: Court, secret: Path, taken: tuple[Right, ...], what: str) -> None:
    right, code = REFUSED[what]
    if right not in taken:
        pytest.skip(f"this machine can't take it away: {right}")
    assert "PermissionError" in said_by(court, code.format(secret=str(secret)))


ALLOWED = {
    "its own temporary files": "import tempfile; tempfile.NamedTemporaryFile().write(b'x')",
    "its own files": "open(__file__).read()",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "the system's libraries": "import ctypes; ctypes.CDLL('libm.so.6'); import sqlite3, decimal",
    "torch's own modules, imported late": "import torch.distributions, torch.ao",
    "a signal to itself": "import os, signal; signal.signal(10, lambda *_: None); os.kill(os.getpid(), 10)",
}


@pytest.mark.parametrize("what", ALLOWED)
def test_a_candidate_is_allowed(court: Court, what: str) -> None:
    assert "done" in said_by(court, ALLOWED[what])


def test_the_evidence_says_what_was_taken_away(court: Court) -> None:
    evidence = court.judge(PROBLEM, SILU)
    assert isinstance(evidence.verdict, Passed)
    assert evidence.protections is not None
    assert sorted((*evidence.protections.taken, *evidence.protections.left)) == sorted(RIGHTS)


def test_the_next_candidate_is_judged_as_ever_after_one_that_tried_everything(
    court: Court, secret: Path, taken: tuple[Right, ...]
) -> None:
    for right, code in REFUSED.values():
        if right in taken:
            said_by(court, code.format(secret=str(secret)))
    assert isinstance(court.judge(PROBLEM, SILU).verdict, Passed)
    assert secret.read_text() == "the seed is 7"
