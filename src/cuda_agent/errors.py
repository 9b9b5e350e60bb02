"""Every error the system raises on purpose, split by whose move it is.

A message says what was asked, what was found and what to do. The four branches decide the exit code of the
command line: the candidate's (1), the user's (2), the machine's (3) and ours (a traceback).
"""

from __future__ import annotations


class CudaAgentError(Exception):
    """Root of the tree; never raised itself."""


class UserError(CudaAgentError):
    """The user's move: a wrong path, an unknown option value, a broken problem file."""


class ProblemError(UserError):
    """The problem file is not usable: a name is missing, it raises, it hangs, it returns no tensor."""


class CandidateFolderError(UserError):
    """The candidate folder can't be judged at all: no `model_new.py`, no such folder."""


class DeviceError(UserError):
    """The asked device is not on this machine, or its name is not understood."""


class CandidateError(CudaAgentError):
    """The candidate's move: it is rejected, and the text says why."""


class SignatureError(CandidateError):
    """A launcher can't be bound: unknown C type, two launchers of one name, no stream parameter."""


class MachineError(CudaAgentError):
    """The machine's fault: no compiler, disk full, a worker that died; nobody is paid or punished."""


class ToolkitError(MachineError):
    """No usable nvcc or host compiler; the text says what to install."""


class InternalError(CudaAgentError):
    """Ours: a broken invariant; please report it."""
