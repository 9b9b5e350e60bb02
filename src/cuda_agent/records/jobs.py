"""A job: one worker process that runs untrusted code, its limits, and how it ended."""

from __future__ import annotations

from typing import Literal

import msgspec

GIB = 1 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one job may use; the job is killed whole when it uses more."""

    memory_bytes: int = 8 * GIB
    """Resident memory of the worker and all its descendants together."""
    file_bytes: int = 64 * GIB
    """Largest file it may write."""
    text_bytes: int = 1 << 20
    """Kept of each of standard output and standard error; the rest is dropped, the job goes on."""
    processes: int = 64
    """Processes alive at once, the worker included."""
    cpu_seconds: int | None = None
    """CPU time of one process; None: only the deadline counts."""
    threads: int | None = None
    """Threads of one torch operator; None: one a core."""


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True):
    """Run `cuda_agent.worker.<worker>.main(folder, channel)` in a process of its own."""

    worker: str
    """`inspect`, `trace`, `reference`, `candidate`, `compare`, `stopwatch`."""
    folder: str
    """Absolute path; holds `request.json` before the job, `result.json` after it, and `stdout.txt`,
    `stderr.txt` and the private `tmp` folder. Whoever made the folder deletes it."""
    limits: Limits = Limits()
    environment: dict[str, str] = {}
    """Added to the few variables that every job gets."""


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """`main` returned, or the process ended with exit status 0: a claim, so look for the result."""

    seconds: float
    peak_bytes: int
    """Largest resident memory of a process of the job."""


class Died(msgspec.Struct, frozen=True, kw_only=True, tag="died"):
    """The process ended by a signal, with another exit status, or was killed for passing a limit."""

    seconds: float
    peak_bytes: int
    signal: str | None
    """`SIGSEGV`; None when it exited or was killed for a limit."""
    exit_code: int | None
    """None when it did not exit by itself."""
    limit: Literal["memory", "processes"] | None
    """The limit that it passed."""
    stderr_tail: str
    """Last lines of standard error."""


class Expired(msgspec.Struct, frozen=True, kw_only=True, tag="expired"):
    """It was still running at the deadline and was killed."""

    limit_s: float
    peak_bytes: int


Outcome = Finished | Died | Expired


def describe(outcome: Outcome) -> str:
    """Return one clause on how a job ended, such as `died of SIGSEGV`."""
    if isinstance(outcome, Finished):
        return "ended with exit status 0"
    if isinstance(outcome, Expired):
        return f"was still running after {outcome.limit_s:g} s and was killed"
    if outcome.limit == "memory":
        return f"was killed for using too much memory ({outcome.peak_bytes / GIB:.1f} GiB)"
    if outcome.limit == "processes":
        return "was killed for starting too many processes"
    if outcome.signal is not None:
        return f"died of {outcome.signal}"
    return f"ended with exit status {outcome.exit_code}"


class JobOrder(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """What the sandbox sends to the zygote, with the job's end of the channel as a passed descriptor."""

    job: WorkerJob
    environment: dict[str, str]
    """The whole environment of the worker."""


class JobEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """What the zygote's side answers when every process of the job is gone."""

    status: int | None
    """As `os.waitpid` gives it; None when the worker could not be started."""
    limit: Literal["memory", "processes", "killed"] | None
    """Why the job was killed from outside; `killed`: the sandbox asked."""
    seconds: float
    peak_bytes: int
    stderr_tail: str
