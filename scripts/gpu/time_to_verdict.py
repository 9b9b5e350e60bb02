"""Time from a native candidate's source to its full verdict, beside the same candidates judged with `load_inline`.

    python scripts/gpu/time_to_verdict.py --out measured [--count 20] [--load-inline-count 4] [--suite FOLDER]

Both ways start a process for every candidate and get sources that no build cache knows: a comment is added to each
`.cu` file. Ours is the command `cuda-agent judge` with all gates, and baselines that were measured before (here,
uncounted; `--suite` takes them from a run of judge_suite.py, and only its passed candidates). The other is scripts/gpu/load_inline_judge.py: build, five trials
with `torch.allclose`, 100 calls timed by CUDA events. Candidates are the folders below `--candidates`, taken in turn
until the count is reached, so with fewer folders than that some are judged several times under different sources. The
two ways alternate, one at a time, so that neither has the machine to itself more than the other; `load_inline` takes
about a minute each, so its count may be smaller. Prints medians with 95 % intervals; `time-to-verdict.json` has every
single time.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from judge_suite import hand_written, say, unpack_baselines

from cuda_agent import assemble
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.toolkit import discover
from cuda_agent.metrics.intervals import median
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.problem import Problem

LIMIT_S = 400.0
"""Longest wait for one judgement."""
OURS = [sys.executable, "-c", "from cuda_agent.cli import main; main()", "judge"]
THEIRS = [sys.executable, str(Path(__file__).with_name("load_inline_judge.py"))]


def variant(folder: Path, parent: Path) -> Path:
    """Return a copy of a candidate whose sources no cache has seen."""
    copy = Path(tempfile.mkdtemp(dir=parent)) / "candidate"
    shutil.copytree(folder, copy)
    for file in copy.rglob("*.cu"):
        with file.open("a", encoding="utf-8") as text:
            text.write(f"\n// {secrets.token_hex(8)}\n")
    return copy


def ask(command: list[str]) -> tuple[float, dict[str, Any]]:
    """Run a command that prints one JSON object; return its wall time and the object, `error` in it when it failed."""
    begun = time.monotonic()
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return LIMIT_S, {"error": f"no end within {LIMIT_S:.0f} s"}
    seconds = time.monotonic() - begun
    try:
        said: dict[str, Any] = json.loads(ran.stdout)
    except json.JSONDecodeError:
        said = {"error": f"exit code {ran.returncode}: {' '.join(ran.stderr.split())[-600:]}"}
    return seconds, said


def ours(problem: Problem, folder: Path, device: str) -> dict[str, Any]:
    """Judge with all gates."""
    seconds, said = ask([*OURS, problem.name, str(folder), "--device", device, "--json"])
    gates = {name: report["seconds"] for name, report in said.get("gates", {}).items()}
    kind = said.get("verdict", {}).get("kind", "")
    return {"way": "ours", "problem": problem.name, "seconds": seconds, "gates": gates, "verdict": kind} | _error(said)


def theirs(problem: Problem, folder: Path) -> dict[str, Any]:
    """Judge with `load_inline` and events."""
    seconds, said = ask([*THEIRS, problem.name, str(folder)])
    return {"way": "load_inline", "problem": problem.name, "seconds": seconds} | said


def _error(said: dict[str, Any]) -> dict[str, Any]:
    return {"error": said["error"]} if "error" in said else {}


def summary(records: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """Return count, median with interval, and median seconds of each step of one way."""
    good = [record for record in records if record["way"] == way and "error" not in record]
    if len(good) < 2:
        return {"way": way, "count": len(good)}
    estimate = median(np.array([[record["seconds"]] for record in good]), seed=0).interval()
    steps: dict[str, list[float]] = {}
    for record in good:
        for name, seconds in (record.get("gates") or record.get("steps") or {}).items():
            steps.setdefault(name, []).append(seconds)
    return {
        "way": way,
        "count": len(good),
        "failed": sum(record["way"] == way for record in records) - len(good),
        "median_s": round(estimate.point, 2),
        "interval_s": [round(estimate.low, 2), round(estimate.high, 2)],
        "steps_median_s": {name: round(float(np.median(values)), 2) for name, values in steps.items()},
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--candidates", type=Path, default=Path("examples/native"))
    parser.add_argument("--problems", default="", help="names, separated by commas; default: all there are")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--load-inline-count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further pair after this")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--suite", type=Path, help="what judge_suite.py wrote on the same kind of machine")
    parser.add_argument("--work", type=Path, default=Path("/tmp/judge-suite"))
    options = parser.parse_args()
    started = time.monotonic()
    cache = options.work / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["CUDA_AGENT_CACHE"] = str(cache)
    warm: set[str] = set()
    if options.suite is not None:
        unpack_baselines(options.suite / "baselines.tar", cache)
        rows = json.loads((options.suite / "table.json").read_bytes())["rows"]
        warm = {row["problem"] for row in rows if row["who"] == "hand" and row["verdict"] == "passed"}
    device = open_device(options.device)
    toolkit = discover()
    wanted = {load_problem(name).name for name in options.problems.split(",") if name}
    pairs = [pair for pair in hand_written(options.candidates, []) if not wanted or pair[0].name in wanted]
    pairs = [pair for pair in pairs if not warm or pair[0].name in warm][: options.count]
    if not pairs:
        raise SystemExit(f"No candidate folders below {options.candidates}; each is named like its problem.")
    scratch = Path(tempfile.mkdtemp(dir=options.work))
    records: list[dict[str, Any]] = []
    usable = []
    for number, (problem, folder) in enumerate(pairs):
        if problem.name in warm and number > 0:
            usable.append((problem, folder))
            continue
        # Fills the baseline cache, and starts the process that workers are forked from; not counted.
        record = ours(problem, folder, device.name)
        say(f"[{time.monotonic() - started:6.1f} s] {problem.name}: {record['verdict'] or record.get('error')}")
        if record["verdict"] == "passed":
            usable.append((problem, folder))
    if not usable:
        raise SystemExit("No candidate passed, so there is nothing to time.")
    every = max(1, options.count // max(1, options.load_inline_count))
    other = 0
    for number in range(options.count):
        if time.monotonic() - started > options.seconds:
            say(f"stopped after {number} of {options.count}: the time was used up")
            break
        problem, folder = usable[number % len(usable)]
        copy = variant(folder, scratch)
        turns = ["ours"]
        if number % every == 0 and other < options.load_inline_count:
            turns.insert(other % 2, "load_inline")
            other += 1
        for way in turns:
            records.append(ours(problem, copy, device.name) if way == "ours" else theirs(problem, copy))
            last = records[-1]
            say(
                f"[{time.monotonic() - started:6.1f} s] {last['way']} {last['problem']}: {last['seconds']:.1f} s {last.get('error', '')}"
            )
    shutil.rmtree(scratch, ignore_errors=True)
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(["python", *sys.argv]),
        "gpu": device.model,
        "driver": device.driver,
        "torch": assemble.environment(toolkit).torch,
        "toolkit": toolkit.name,
        "different_candidates": len(usable),
        "summaries": [summary(records, way) for way in ("ours", "load_inline")],
        "records": records,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "time-to-verdict.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "records"}, indent=1))


if __name__ == "__main__":
    main()
