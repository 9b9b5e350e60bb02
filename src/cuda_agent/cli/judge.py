"""`cuda-agent judge`."""

from __future__ import annotations

from pathlib import Path

import typer

from cuda_agent import assemble
from cuda_agent.cli.failures import reported
from cuda_agent.cli.output import Output, exit_code, verdict_json, verdict_table
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.workspace import read_candidate
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.evidence import Evidence
from cuda_agent.records.run import RUN_SCHEMA_VERSION, Run
from cuda_agent.records.verdict import MachineFault, ProblemFault
from cuda_agent.store.run_folder import RunFolder, utc_now


def run(
    *,
    problem: str,
    candidate: Path,
    device: str,
    protocol: str,
    out: Path | None,
    seed: int | None,
    fresh_baselines: bool,
    json: bool,
) -> None:
    """Judge one candidate folder and exit with the verdict's code."""
    output = Output(json=json)
    with reported(output):
        loaded = load_problem(problem)
        snapshot = read_candidate(candidate)
        chosen = open_device(device)
        if out is not None:
            RunFolder.check_free(out)
        output.say(f"judging {candidate} against {loaded.name} on {chosen.name}", "bold")
        with assemble.open_session(
            loaded,
            device=chosen,
            protocol=protocol,
            seed=seed,
            on_report=output.report,
            on_progress=output.progress,
            fresh_baselines=fresh_baselines,
        ) as session:
            evidence = session.judge.judge(snapshot)
        # A fault of the problem or the machine says nothing of the candidate: there is no judgement to keep.
        fault = isinstance(evidence.verdict, ProblemFault | MachineFault)
        path = str(_store(out, evidence, seed)) if out is not None and not fault else ""
        cost = f"{output.elapsed_s():.1f} s in all"
        if json:
            output.print_json(verdict_json(evidence, path))
        else:
            output.print(verdict_table(evidence, cost=cost))
            if path:
                output.print(f"evidence: {path}")
        raise typer.Exit(exit_code(evidence.verdict))


def _store(out: Path, evidence: Evidence, seed: int | None) -> Path:
    """Make the folder `out` with the judgement, whole or not at all, and return the path of its evidence."""
    asked = Run(
        schema_version=RUN_SCHEMA_VERSION,
        purpose="judge",
        created=utc_now(),
        problem=evidence.problem,
        device=evidence.device.name,
        protocol=evidence.protocol,
        policy="",
        seed=seed,
        turn_limit=0,
        time_limit_s=0,
    )
    with RunFolder.creating(out, asked) as folder:
        folder.add_verdict(evidence)
        folder.promote(evidence)
        return out / (folder.best / "evidence.json").relative_to(folder.path)
