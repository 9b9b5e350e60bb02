"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent import __version__

app = typer.Typer(
    name="cuda-agent",
    help="Write CUDA kernels for PyTorch modules, and judge them: compiled, correct, fast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: drawing it with rich would take most of the time that --help needs.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
problems_app = typer.Typer(help="List and show problems.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(problems_app, name="problems")

DeviceOption = Annotated[
    str, typer.Option("--device", help="auto, emulated (no GPU needed), or cuda:N.", metavar="DEVICE")
]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="strict (what we stand behind) or paper (published numbers).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Root seed that replays a judgement; default: secret and fresh.")
]
ProblemArgument = Annotated[
    str,
    typer.Argument(help="A built-in problem's name, a KernelBench-form file, or DATASET#ROW.", metavar="PROBLEM"),
]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cuda-agent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def optimize(
    problem: Annotated[
        str | None,
        typer.Argument(
            help="A built-in problem's name, a KernelBench-form file, or DATASET#ROW; not with --resume.",
            metavar="PROBLEM",
        ),
    ] = None,
    device: DeviceOption = "auto",
    protocol: ProtocolOption = "strict",
    out: Annotated[Path | None, typer.Option("--out", help="Run folder to make; default: runs/TIME-PROBLEM.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Continue the run in this folder; --turns and --seconds may raise its budget."),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="Who writes the kernel: composer (no model).")] = "composer",
    turns: Annotated[int | None, typer.Option("--turns", help="Budget in tool calls.  [default: 60]", min=1)] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Budget in wall seconds.  [default: 900]", min=1)
    ] = None,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Find a faster CUDA kernel for PROBLEM: propose, compile, verify, profile, revise."""
    from cuda_agent.cli import optimize as command

    command.run(
        problem=problem,
        device=device,
        protocol=protocol,
        out=out,
        resume=resume,
        policy=policy,
        turns=turns,
        seconds=seconds,
        seed=seed,
        json=json,
    )


@app.command()
def judge(
    problem: ProblemArgument,
    candidate: Annotated[
        Path, typer.Argument(help="A folder with model_new.py and kernels/*.cu.", metavar="CANDIDATE")
    ],
    device: DeviceOption = "auto",
    protocol: ProtocolOption = "strict",
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make for the evidence; default: none.")] = None,
    seed: SeedOption = None,
    fresh_baselines: Annotated[
        bool,
        typer.Option("--fresh-baselines", help="Time all baselines beside the candidate, ignoring the cache."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Judge CANDIDATE against PROBLEM: each gate's verdict, errors, times, reward."""
    from cuda_agent.cli import judge as command

    command.run(
        problem=problem,
        candidate=candidate,
        device=device,
        protocol=protocol,
        out=out,
        seed=seed,
        fresh_baselines=fresh_baselines,
        json=json,
    )


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(help="A candidate folder, or a run folder (its best candidate).", metavar="SOURCE"),
    ],
    destination: Annotated[Path, typer.Argument(help="Package folder to make.", metavar="DESTINATION")],
) -> None:
    """Write a candidate as a package that plain PyTorch users import, without CUDA Agent."""
    from cuda_agent.cli import export as command

    command.run(source=source, destination=destination)


@problems_app.command("list")
def list_problems(
    suite: Annotated[
        str, typer.Argument(help="builtin, a directory, or a JSONL or parquet file.", metavar="SUITE")
    ] = "builtin",
    json: JsonOption = False,
) -> None:
    """List the problems of a suite."""
    from cuda_agent.cli import problems as command

    command.list_suite(suite, json=json)


@problems_app.command("show")
def show_problem(problem: ProblemArgument, json: JsonOption = False) -> None:
    """Load PROBLEM, run its reference once, and show its source, shapes and precision."""
    from cuda_agent.cli import problems as command

    command.show(problem, json=json)


@app.command()
def doctor(
    toolkit: Annotated[bool, typer.Option("--toolkit", help="Check only that candidates can be compiled.")] = False,
    json: JsonOption = False,
) -> None:
    """Say what this machine can do, what is missing, and how to get it."""
    from cuda_agent.cli import doctor as command

    command.run(toolkit_only=toolkit, json=json)
