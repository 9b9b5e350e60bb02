"""`cuda-agent export`."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from cuda_agent.cli.failures import reported
from cuda_agent.cli.output import Output
from cuda_agent.gates.export import check_destination, export, read_source


def run(*, source: Path, destination: Path) -> None:
    """Write the candidate in `source` as a package at `destination`."""
    output = Output(json=False)
    with reported(output):
        check_destination(destination)
        candidate, evidence = read_source(source)
        export(candidate, evidence, destination)
        judged = evidence.verdict.__struct_config__.tag if evidence is not None else "not judged"
        output.print(f"package: {destination} (candidate {candidate.id}, {judged})")
        output.print(Text(f"use it:  from {destination.name} import ModelNew  (it builds its kernels at first import)"))
        raise typer.Exit(0)
