"""The command line: parses, shows progress, prints one table or one JSON object, and sets the exit code.

Exit codes: 0 passed, 1 the candidate was rejected, 2 the user's mistake, 3 the machine's fault.
"""

from __future__ import annotations

import sys

USAGE = 2


def main() -> None:
    """Run the command line and exit."""
    from cuda_agent.cli.app import app

    try:
        app()
    except SystemExit as stop:
        # Arguments that can't be parsed end before any command runs; a reader of --json still gets its object.
        if stop.code == USAGE and "--json" in sys.argv and "cuda_agent.cli.output" not in sys.modules:
            from cuda_agent.cli.failures import report_usage

            report_usage()
        raise
