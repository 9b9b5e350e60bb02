"""Write the generated parts of the documentation, or check that they are not stale.

Generated: the package table of `docs/architecture.md`, from the first sentence of each package's docstring,
and `docs/cli.md`, from the command line's own help. `--check` changes nothing and exits 1 when a file is
stale or a relative link in a Markdown file leads nowhere.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cuda_agent"

LAYERS = (
    ("cli",),
    ("assemble",),
    ("agent",),
    ("policies",),
    ("gates", "rewards", "skills"),
    ("problems", "sandbox"),
    ("store", "metrics"),
    ("records",),
    ("errors",),
    ("worker",),
    ("emulator",),
)
COMMANDS = (
    (),
    ("optimize",),
    ("judge",),
    ("export",),
    ("problems", "list"),
    ("problems", "show"),
    ("doctor",),
)
BEGIN, END = "<!-- generated: packages -->", "<!-- end generated -->"


def caption(name: str) -> str:
    """Return the first sentence of a package's or module's docstring."""
    file = PACKAGE / name / "__init__.py"
    text = ast.get_docstring(ast.parse((file if file.exists() else PACKAGE / f"{name}.py").read_text()))
    if not text:
        raise SystemExit(f"docs: package {name} has no docstring; its first sentence is its caption")
    return " ".join(text.split("\n\n")[0].split())


def architecture(current: str) -> str:
    """Return `docs/architecture.md` with a fresh package table."""
    head, _, rest = current.partition(BEGIN)
    _, _, tail = rest.partition(END)
    rows = [f"| {' · '.join(f'`{n}`' for n in layer)} | {'<br>'.join(map(caption, layer))} |" for layer in LAYERS]
    table = "\n".join(["| layer | what lives there |", "| --- | --- |", *rows])
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def command_line() -> str:
    """Return `docs/cli.md`."""
    parts = ["# The command line\n\nGenerated from the program's own help by `scripts/docs.py`.\n"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    program = str(Path(sys.executable).parent / "cuda-agent")
    for command in COMMANDS:
        ran = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True, env=environment)
        text = "\n".join(line.rstrip() for line in ran.stdout.strip().splitlines())
        parts.append(f"## `{' '.join(('cuda-agent', *command))}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def broken_links() -> list[str]:
    """Return `file: target` for every relative Markdown link that leads nowhere."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    broken = []
    for name in listed.stdout.split():
        file = ROOT / name
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
            if "://" not in target and not (file.parent / target).exists():
                broken.append(f"{name}: {target}")
    return broken


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare them; return the exit code."""
    pages = {
        ROOT / "docs" / "architecture.md": architecture,
        ROOT / "docs" / "cli.md": lambda _: command_line(),
    }
    stale = []
    for path, make in pages.items():
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        fresh = make(current)
        if fresh != current:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(fresh, encoding="utf-8")
    links = broken_links()
    for link in links:
        print(f"docs: broken link in {link}", file=sys.stderr)
    if "--check" in arguments and stale:
        print(f"docs: stale: {', '.join(stale)}; run python scripts/docs.py", file=sys.stderr)
    return 1 if links or ("--check" in arguments and stale) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
