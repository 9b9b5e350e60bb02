"""Loads a problem, runs its reference once at CPU shapes, and says what it is, or what is wrong with it."""

from __future__ import annotations

import socket
from pathlib import Path

from cuda_agent.errors import ProblemError
from cuda_agent.records import codec
from cuda_agent.records.problem import InspectReply, InspectRequest
from cuda_agent.worker.problem_module import describe


def main(folder: Path, channel: socket.socket) -> None:
    """Answer `request.json` (an `InspectRequest`) with `result.json` (an `InspectReply`)."""
    request = codec.read(folder / "request.json", InspectRequest)
    try:
        reply = InspectReply(description=describe(request.source, gpu=request.gpu))
    except ProblemError as error:
        reply = InspectReply(problem=str(error))
    codec.write(folder / "result.json", reply)
