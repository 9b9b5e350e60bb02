"""Looking at a problem before anything is judged: does it load, run, and what are its shapes and operations.

A problem file is Python that may raise or hang, so workers run it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cuda_agent.errors import MachineError, ProblemError
from cuda_agent.records import codec
from cuda_agent.records.graph import TracedGraph, TraceReply, TraceRequest
from cuda_agent.records.jobs import Died, Expired, Limits, WorkerJob, describe
from cuda_agent.records.problem import InspectReply, InspectRequest, Problem, ProblemDescription
from cuda_agent.sandbox.contract import Sandbox

INSPECT_LIMIT_S = 120.0
"""Longest wait for a problem to load and run once at CPU shapes."""

R = TypeVar("R")


def inspect_problem(problem: Problem, *, gpu: bool, sandbox: Sandbox, scratch: Path) -> ProblemDescription:
    """Load a problem and run its reference once; return what was seen, with the cases for a GPU if asked.

    Raises:
        ProblemError: it can't be used, or does not come to an end.
        MachineError: the worker can't be started or read.
    """
    reply = _ask(
        sandbox, scratch, "inspect", InspectRequest(source=problem.source, gpu=gpu), InspectReply, problem.name
    )
    if reply.description is None:
        # The worker knows the file as problem.py; the user knows it by its own name.
        file = Path(problem.origin)
        text = reply.problem.replace("problem.py:", f"{file.name}:") if file.suffix == ".py" else reply.problem
        raise ProblemError(f"{problem.name}: {text}")
    return reply.description


def trace_problem(
    problem: Problem, description: ProblemDescription, *, gpu: bool, sandbox: Sandbox, scratch: Path
) -> TracedGraph | str:
    """Return the reference's operations, or why they can't be listed; same errors as `inspect_problem`."""
    source = problem.source if gpu else description.cpu_source or problem.source
    request = TraceRequest(source=source, shapes="gpu" if gpu else "cpu")
    reply = _ask(sandbox, scratch, "trace", request, TraceReply, problem.name)
    return reply.graph if reply.graph is not None else reply.problem


def _ask(sandbox: Sandbox, scratch: Path, worker: str, request: Any, kind: type[R], name: str) -> R:
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix=f"{worker}-"))
    try:
        codec.write(folder / "request.json", request)
        outcome = sandbox.run(WorkerJob(worker=worker, folder=str(folder), limits=Limits()), deadline_s=INSPECT_LIMIT_S)
        if isinstance(outcome, Expired):
            raise ProblemError(
                f"{name}: loading the problem and running it once at CPU shapes took longer than {INSPECT_LIMIT_S:.0f} s. "
                "Look for an endless loop, or make get_cpu_inputs() smaller."
            )
        try:
            return codec.read(folder / "result.json", kind)
        except FileNotFoundError:
            tail = outcome.stderr_tail.strip()[-600:] if isinstance(outcome, Died) else ""
            raise ProblemError(
                f"{name}: the process that loads the problem {describe(outcome)} before it was done. Run the file "
                f"with python alone to see why. {tail}".strip()
            ) from None
        except msgspec.MsgspecError as error:
            raise MachineError(f"{name}: the {worker} worker's answer can't be read: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
