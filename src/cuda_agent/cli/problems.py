"""`cuda-agent problems list` and `cuda-agent problems show`."""

from __future__ import annotations

import shutil
from typing import Any

import typer
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from cuda_agent import assemble
from cuda_agent.cli.failures import reported
from cuda_agent.cli.output import Output
from cuda_agent.gates.inspection import inspect_problem
from cuda_agent.problems.loader import load_problem, survey_suite
from cuda_agent.problems.source import family, has_variants, title
from cuda_agent.records.problem import BrokenProblem, Case, Problem, ProblemDescription, ValueSpec


def list_suite(suite: str, *, json: bool) -> None:
    """List what is in a suite; a broken problem is listed with its reason. Nothing is run."""
    output = Output(json=json)
    with reported(output):
        entries = survey_suite(suite)
        broken = [entry for entry in entries if isinstance(entry, BrokenProblem)]
        if json:
            output.print_json({"schema_version": 1, "suite": suite, "problems": [_entry_json(e) for e in entries]})
        else:
            output.print(_list_table(entries))
            count = f"{len(entries) - len(broken)} problems" + (f", {len(broken)} broken" if broken else "")
            output.print(count)
        raise typer.Exit(0)


def show(problem: str, *, json: bool) -> None:
    """Load one problem in a process of its own, run its reference once at CPU shapes, and show what was seen."""
    output = Output(json=json)
    with reported(output):
        loaded = load_problem(problem)
        description = _inspected(loaded)
        if json:
            output.print_json(
                {
                    "schema_version": 1,
                    "problem": loaded,
                    "title": title(loaded.source),
                    "family": family(loaded.source),
                    "description": description,
                }
            )
        else:
            output.print(Syntax(loaded.source.rstrip(), "python", background_color="default", word_wrap=True))
            output.print("")
            output.print(_description_table(loaded, description))
        raise typer.Exit(0)


def _inspected(problem: Problem) -> ProblemDescription:
    sandbox = assemble.open_sandbox()
    scratch = assemble.open_scratch()
    try:
        return inspect_problem(problem, gpu=True, sandbox=sandbox, scratch=scratch)
    finally:
        sandbox.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _entry_json(entry: Problem | BrokenProblem) -> dict[str, Any]:
    result: dict[str, Any] = {"name": entry.name, "level": entry.level, "origin": entry.origin}
    if isinstance(entry, BrokenProblem):
        return result | {"broken": entry.reason}
    return result | {
        "id": entry.id,
        "family": family(entry.source),
        "title": title(entry.source),
        "declares_variants": has_variants(entry.source),
        "broken": None,
    }


def _list_table(entries: tuple[Problem | BrokenProblem, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("level", justify="right")
    table.add_column("family", no_wrap=True)
    table.add_column("variants")
    table.add_column("what it computes", overflow="fold")
    for entry in entries:
        level = "" if entry.level is None else str(entry.level)
        if isinstance(entry, BrokenProblem):
            table.add_row(entry.name, level, Text("broken", "bold red"), "", Text(entry.reason, "red"))
        else:
            variants = "declared" if has_variants(entry.source) else "-"
            table.add_row(entry.name, level, family(entry.source), variants, title(entry.source))
    return table


def _description_table(problem: Problem, description: ProblemDescription) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("name", problem.name)
    table.add_row("origin", problem.origin)
    table.add_row("identity", problem.id)
    if named := family(problem.source):
        table.add_row("family", named)
    table.add_row("precision", description.precision)
    tolerance = description.tolerance
    table.add_row(
        "tolerance",
        f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}, declared" if tolerance else "the protocol's, by precision",
    )
    table.add_row("mode", "training" if description.training else "evaluation")
    table.add_row("parameters", f"{description.parameter_count:,} elements at CPU shapes")
    table.add_row("constructor", _values(description.init_inputs) or "no arguments")
    for device, cases in (("CPU", description.cpu_cases), ("GPU", description.gpu_cases)):
        for case in cases:
            table.add_row(f"{device} {case.name}", f"{_case(case)}  ({case.origin})")
    if description.fixed_shape:
        table.add_row("shapes", "one case only: a candidate may rely on it")
    return table


def _case(case: Case) -> str:
    outputs = _values(case.outputs) or "known once it is run"
    return f"{_values(case.inputs) or 'no inputs'} -> {outputs}"


def _values(values: tuple[ValueSpec, ...]) -> str:
    return ", ".join(_value(value) for value in values)


def _value(value: ValueSpec) -> str:
    if value.kind == "tensor":
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return value.text
