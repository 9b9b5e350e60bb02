"""Errors at the edge: one paragraph, the right exit code, and with `--json` still one object."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

import typer

from cuda_agent.cli.output import Output
from cuda_agent.errors import CandidateError, InternalError, MachineError, ProblemError, UserError

REJECTED, USER, MACHINE = 1, 2, 3
INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def reported(output: Output, *, resume_hint: str = "") -> Generator[None]:
    """Turn the project's errors, a full disk and Ctrl-C into a message and an exit code."""
    try:
        yield
    except UserError as error:
        _stop(output, error, USER)
    except CandidateError as error:
        _stop(output, error, REJECTED)
    except MachineError as error:
        _stop(output, error, MACHINE)
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read the output has gone, as `head` does
            raise
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            _stop_with_traceback(output, error)
        where = f" at {error.filename}" if error.filename else ""
        _stop(
            output,
            MachineError(
                f"Writing a result failed{where}: {os.strerror(error.errno)}. Nothing finished before is lost; "
                "free space or choose another folder with --out, or another cache with $CUDA_AGENT_CACHE."
            ),
            MACHINE,
        )
    except KeyboardInterrupt:
        output.pause()
        output.say(f"interrupted. {resume_hint}".strip(), "yellow")
        if output.json:
            output.print_json(
                {
                    "verdict": None,
                    "gates": {},
                    "reward": None,
                    "error": {"kind": "Interrupted"},
                    "exit_code": INTERRUPTED,
                }
            )
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        _stop_with_traceback(output, error)


def report_usage() -> None:
    """Print the JSON object of a command line that can't be parsed; the parser has said why on standard error."""
    Output(json=True).print_json(
        {
            "verdict": None,
            "gates": {},
            "reward": None,
            "error": {"kind": "UsageError", "message": "The arguments are not understood; standard error says why."},
            "exit_code": USER,
        }
    )


def _stop_with_traceback(output: Output, error: Exception) -> NoReturn:
    """Ours: show where, and exit as for a machine's fault, since a plain traceback's 1 would reject the candidate."""
    output.pause()
    traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}"
    _stop(
        output, InternalError(f"CUDA Agent itself failed with {what}. Please report it with the lines above."), MACHINE
    )


def _stop(output: Output, error: Exception, code: int) -> NoReturn:
    kind = type(error).__name__
    verdict = None
    if isinstance(error, ProblemError):
        verdict = {"kind": "problem-fault", "message": str(error)}
    elif isinstance(error, MachineError):
        verdict = {"kind": "machine-fault", "message": str(error)}
    output.say(f"{kind}: {error}", "bold red")
    if output.json:
        output.print_json(
            {
                "verdict": verdict,
                "gates": {},
                "reward": None,
                "error": {"kind": kind, "message": str(error)},
                "exit_code": code,
            }
        )
    raise typer.Exit(code) from error
