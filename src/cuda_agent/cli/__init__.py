"""The command line: parses, shows progress, prints one table or one JSON object, and sets the exit code.

Exit codes: 0 passed, 1 the candidate was rejected, 2 the user's mistake, 3 the machine's fault.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    from cuda_agent.cli.app import app

    sys.exit(app())
