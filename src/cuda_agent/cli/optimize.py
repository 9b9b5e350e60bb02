"""`cuda-agent optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from cuda_agent import assemble
from cuda_agent.agent.loop import Budget, Episode
from cuda_agent.cli.failures import REJECTED, reported
from cuda_agent.cli.output import Output, exit_code, verdict_json, verdict_table
from cuda_agent.errors import UserError
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.judge import FROM_CACHE
from cuda_agent.gates.protocols import protocol_named
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.episode import Ending, ToolCall, Turn
from cuda_agent.records.evidence import Device
from cuda_agent.records.run import RUN_SCHEMA_VERSION, Run
from cuda_agent.records.verdict import GateReport
from cuda_agent.store.run_folder import RunFolder, default_run_folder, utc_now

TURNS = 60
SECONDS = 900.0


def run(
    *,
    problem: str | None,
    device: str,
    protocol: str,
    out: Path | None,
    resume: Path | None,
    policy: str,
    turns: int | None,
    seconds: float | None,
    seed: int | None,
    json: bool,
) -> None:
    """Run or continue one episode and exit with the best candidate's code."""
    output = Output(json=json)
    if resume is not None:
        with reported(output):
            if problem is not None or out is not None:
                raise UserError("--resume continues a stored run, which has its problem and folder; give neither.")
            path, asked = resume, RunFolder.open(resume).run
            if asked.purpose != "optimize":
                raise UserError(f"--resume {resume}: it holds a judgement, which can't be continued. Judge again.")
            asked = msgspec.structs.replace(
                asked, turn_limit=turns or asked.turn_limit, time_limit_s=seconds or asked.time_limit_s
            )
            chosen = open_device(asked.device)
    else:
        with reported(output):
            if problem is None:
                raise UserError("Name a PROBLEM to optimise, or a run to continue with --resume FOLDER.")
            loaded = load_problem(problem)
            protocol_named(protocol)
            chosen = open_device(device)
            path = out or default_run_folder(loaded.name, Path("runs"))
            RunFolder.check_free(path)
            asked = Run(
                schema_version=RUN_SCHEMA_VERSION,
                purpose="optimize",
                created=utc_now(),
                problem=loaded,
                device=chosen.name,
                protocol=protocol,
                policy=policy,
                seed=seed,
                turn_limit=turns or TURNS,
                time_limit_s=seconds or SECONDS,
            )
    with reported(output, resume_hint=f"Continue with: cuda-agent optimize --resume {path}"):
        ending = _episode(asked, path, chosen, output)
        _report(ending, path, output)
        raise typer.Exit(_code(ending))


def _episode(asked: Run, path: Path, device: Device, output: Output) -> Ending:
    """Run what is left of the run's episode; the folder is made once the problem is known to be usable."""
    if (path / "run.json").is_file():
        ended = RunFolder.open(path).ending()
        if ended is not None and not _may_go_on(ended, asked):
            output.say(f"{path}: the run is at its end ({ended.reason}); showing what came of it")
            return ended
    chosen_policy = assemble.open_policy(asked.policy)
    output.say(f"optimising {asked.problem.name} on {device.name} ({device.model}) with {asked.policy}", "bold")
    with assemble.open_session(
        asked.problem,
        device=device,
        protocol=asked.protocol,
        seed=asked.seed,
        on_report=lambda report: output.report(report) if _is_news(report) else None,
        on_progress=output.progress,
    ) as session:
        briefing = session.briefing(turn_limit=asked.turn_limit, time_limit_s=asked.time_limit_s)
        folder = RunFolder.open(path) if (path / "run.json").is_file() else RunFolder.create(path, asked)
        output.say(f"run folder: {path}")
        return Episode(
            folder=folder,
            judge=session.judge,
            policy=chosen_policy,
            briefing=briefing,
            budget=Budget(asked.turn_limit, asked.time_limit_s),
            on_call=lambda number, call: output.say(f"{number:>3}  {_call_text(call)}"),
            on_turn=lambda turn: _show_failure(turn, output),
        ).run()


def _is_news(report: GateReport) -> bool:
    """Whether a gate's report says what the turns before have not: every turn passes the early gates again."""
    return report.status != "passed" or (report.gate != "source" and report.message != FROM_CACHE)


def _may_go_on(ended: Ending, asked: Run) -> bool:
    """Whether an episode that ran out of a budget has been given more."""
    if ended.reason == "turn budget":
        return asked.turn_limit > ended.turns
    return ended.reason == "time budget" and asked.time_limit_s > ended.wall_seconds


def _call_text(call: ToolCall) -> str:
    path = call.arguments.get("path", "")
    return f"{call.tool:<8}{f'{path}  ' if path else ''}{call.thought}"


def _show_failure(turn: Turn, output: Output) -> None:
    if not turn.result.ok:
        output.say(f"     {turn.result.text}", "yellow")


def _report(ending: Ending, path: Path, output: Output) -> None:
    shown = ending.best or ending.final
    best = path / "best"
    evidence = str(best / "evidence.json") if ending.best is not None else ""
    cost = (
        f"{ending.turns} turns; {ending.build_seconds:.1f} s building, {ending.gate_seconds:.1f} s in other gates, "
        f"{ending.wall_seconds:.1f} s in all"
    )
    if output.json:
        result: dict[str, Any] = (
            verdict_json(shown, evidence) if shown else {"verdict": None, "gates": {}, "reward": None}
        )
        result |= {
            "run": str(path),
            "best": str(best) if ending.best is not None else None,
            "ending": {
                "reason": ending.reason,
                "note": ending.note,
                "turns": ending.turns,
                "build_seconds": ending.build_seconds,
                "gate_seconds": ending.gate_seconds,
                "wall_seconds": ending.wall_seconds,
            },
        }
        output.print_json(result)
        return
    if shown is not None:
        output.print(verdict_table(shown, cost=cost))
    output.print(f"{ending.reason}: {ending.note}")
    if ending.best is not None:
        output.print(f"best candidate: {best}\nevidence: {evidence}")
    else:
        output.print(f"no candidate passed; every turn is in {path / 'episode.jsonl'}")


def _code(ending: Ending) -> int:
    shown = ending.best or ending.final
    return exit_code(shown.verdict) if shown is not None else REJECTED
