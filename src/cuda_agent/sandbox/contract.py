"""What gates ask of a place that runs untrusted code."""

from __future__ import annotations

import socket
from typing import Protocol

from cuda_agent.records.jobs import Outcome, WorkerJob


class RunningJob(Protocol):
    """A job that was started; `wait` or `kill` must be called once, after which no process of it is left."""

    channel: socket.socket
    """This side's end of the conversation: one line of JSON a record (`records.channel.Channel`)."""

    def wait(self, deadline_s: float) -> Outcome:
        """Return how the job ended; one that is running after `deadline_s` more seconds is killed whole.

        Raises:
            MachineError: the place itself broke down while the job ran.
        """
        ...

    def kill(self) -> Outcome:
        """End the job and everything it started, now; returns like `wait`, never raises for a dead job."""
        ...


class Sandbox(Protocol):
    """Runs jobs, each in processes of its own that share nothing but their folder and channel.

    `run` and `start` may be called from several threads. A job never outlives its caller's process.
    """

    def run(self, job: WorkerJob, *, deadline_s: float) -> Outcome:
        """Run a job that needs no conversation and return how it ended.

        Raises:
            MachineError: no process could be started, even after one restart of the place.
        """
        ...

    def start(self, job: WorkerJob) -> RunningJob:
        """Start a job and return at once; same errors as `run`."""
        ...

    def close(self) -> None:
        """Release the place; jobs still running are killed. No call may follow."""
        ...
