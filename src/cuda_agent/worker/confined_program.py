"""Starts a compiler with no rights but those it needs: `python -m cuda_agent.worker.confined_program ...`.

    --read PATH   may be read besides the system's and Python's files; any number of times
    --write PATH  the folder it works in
    -- PROGRAM ARGUMENTS

It sees no GPU and no network, and writes nowhere else. The sources it compiles are untrusted: an `#include` or
`.incbin` of a file of the user's finds nothing.
"""

from __future__ import annotations

import argparse
import os
import resource

from cuda_agent.worker import confinement

MEMORY_BYTES = 24 << 30
"""Address space of one compiler process; CUTLASS takes several GB."""
FILE_BYTES = 4 << 30


def main() -> None:
    """Give up rights and become the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", action="append", default=[])
    parser.add_argument("--write", required=True)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for which, value in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES)):
        _, hard = resource.getrlimit(which)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))
    confinement.enter(reads=options.read, writes=[options.write], compiles=True)
    os.execv(options.program[0], options.program)


if __name__ == "__main__":
    main()
