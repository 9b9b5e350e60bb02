"""A sandbox whose workers are plain functions of the caller, for tests of gates without processes."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from cuda_agent.errors import MachineError
from cuda_agent.records.jobs import Died, Expired, Finished, Outcome, WorkerJob

Script = Callable[[Path, socket.socket], None]


class ScriptedSandbox:
    """Runs `scripts[job.worker](folder, channel)` in a thread of this process.

    Stops: nothing; scripts are trusted.
    """

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        self.jobs: list[WorkerJob] = []
        """Every job asked for, in order."""

    def run(self, job: WorkerJob, *, deadline_s: float) -> Outcome:
        """See `Sandbox.run`."""
        return self.start(job).wait(deadline_s)

    def start(self, job: WorkerJob) -> ScriptedJob:
        """See `Sandbox.start`."""
        if job.worker not in self._scripts:
            raise MachineError(f"no script for worker {job.worker!r}; there are {sorted(self._scripts)}")
        self.jobs.append(job)
        return ScriptedJob(self._scripts[job.worker], Path(job.folder))

    def close(self) -> None:
        """See `Sandbox.close`."""


class ScriptedJob:
    """A script in its thread."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.channel, self._other = socket.socketpair()
        self._script = script
        self._folder = folder
        self._started = time.monotonic()
        self._exit_code = 0
        self._error = ""
        self._thread = threading.Thread(target=self._body, daemon=True)
        self._thread.start()

    def wait(self, deadline_s: float) -> Outcome:
        """See `RunningJob.wait`; a script that overstays is told by its closed channel, not killed."""
        self._thread.join(deadline_s)
        self.channel.close()
        if self._thread.is_alive():
            return Expired(limit_s=deadline_s, peak_bytes=0)
        seconds = time.monotonic() - self._started
        if self._exit_code == 0:
            return Finished(seconds=seconds, peak_bytes=0)
        return Died(
            seconds=seconds,
            peak_bytes=0,
            signal=None,
            exit_code=self._exit_code,
            limit=None,
            stderr_tail=self._error,
        )

    def kill(self) -> Outcome:
        """See `RunningJob.kill`."""
        return self.wait(0.0)

    def _body(self) -> None:
        try:
            self._script(self._folder, self._other)
        except SystemExit as leaving:
            self._exit_code = leaving.code if isinstance(leaving.code, int) else 1
        except Exception:  # what a process would print before it exits with 1
            self._exit_code = 1
            self._error = traceback.format_exc()
        finally:
            self._other.close()
