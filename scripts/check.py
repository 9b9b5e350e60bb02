"""Run every check of the project, in the order in which a mistake is cheapest to find.

`make test` calls this, and continuous integration calls `make test`. All steps run even when one fails, so
that one run shows everything; the exit code is 0 only when all passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

STEPS: tuple[tuple[str, list[str]], ...] = (
    ("format", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
    ("lint", [str(BIN / "ruff"), "check", "--quiet", "."]),
    ("types", [str(BIN / "mypy")]),
    ("import contracts", [str(BIN / "lint-imports"), "--no-logo"]),
    ("docs", [sys.executable, "scripts/docs.py", "--check"]),
    ("tests", [sys.executable, "-m", "pytest", "-n", str(min(os.cpu_count() or 1, 8))]),
)


def main() -> int:
    """Run the steps and return the exit code."""
    failed = []
    for name, command in STEPS:
        started = time.monotonic()
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.1f} s", flush=True)
    if failed:
        print(f"check: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
