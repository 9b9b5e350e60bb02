"""Judge hand-written candidates, and what the composer finds, for the built-in problems on one GPU.

    python scripts/gpu/judge_suite.py --out measured                        # examples/native
    python scripts/gpu/judge_suite.py --out measured --composer             # and the composer's best
    python scripts/gpu/judge_suite.py --out measured --problems softmax,gelu --seconds 540 --baselines old/baselines.tar

Run it in an environment that has this package and a CUDA build of torch: scripts/setup.sh makes one, and on a
machine without network scripts/gpu/setup.sh. It writes into the folder after `--out`, again after every judgement,
so that an interrupted run loses nothing:

    table.md, table.json   one row a judgement, with date, GPU, driver, torch, nvcc and the command
    evidence.tar           the whole evidence of each, as `level1_7_softmax.hand.json`
    baselines.tar          the measured baselines, to be given to a next run by `--baselines`

Baselines that are not known yet cost most of the time: `scripts/gpu/compile_ahead.py` halves that.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from cuda_agent import assemble
from cuda_agent.errors import CudaAgentError
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.toolkit import discover
from cuda_agent.gates.workspace import read_candidate
from cuda_agent.problems.loader import load_problem, load_suite
from cuda_agent.records import codec
from cuda_agent.records.evidence import Device, Evidence
from cuda_agent.records.problem import Problem
from cuda_agent.records.timing import ContenderTime, Interval, Speedup
from cuda_agent.records.verdict import Passed

FIRST_GUESS_S = 40.0
"""A judgement with unknown baselines may take this long, until one has shown how long it takes."""


class Row(msgspec.Struct, kw_only=True):
    """One judgement, or why there is none."""

    problem: str
    who: str
    """`hand` or `composer`."""
    verdict: str
    message: str = ""
    seconds: float = 0.0
    relative_rms_error: float | None = None
    """Worst over all trials, against the float64 oracle."""
    tolerance_share: float | None = None
    """Worst error over what is allowed; 1 is the edge."""
    times_us: dict[str, Interval] = {}
    """Device time by contender, medians."""
    wall_us: dict[str, Interval] = {}
    speedups: dict[str, Interval] = {}
    """Device time of the baseline over the candidate's."""
    baseline_failures: dict[str, str] = {}
    reward: float | None = None


class Table(msgspec.Struct, kw_only=True):
    """`table.json`."""

    date: str
    command: str
    gpu: str
    driver: str
    torch: str
    toolkit: str
    protocol: str
    rows: list[Row]


Action = Callable[[Problem, Device, str, Path], Evidence | str]


def judge(problem: Problem, device: Device, protocol: str, folder: Path) -> Evidence | str:
    """Return the evidence of the candidate in `folder`."""
    with assemble.open_session(
        problem,
        device=device,
        protocol=protocol,
        seed=None,
        on_report=lambda report: say(
            f"    {report.gate}: {report.status}, {report.seconds:.1f} s, {report.message[:120]}"
        ),
        on_progress=lambda gate, text: None,
    ) as session:
        return session.judge.judge(read_candidate(folder))


def optimize(problem: Problem, device: Device, protocol: str, folder: Path, *, seconds: float) -> Evidence | str:
    """Let the default policy work in the run folder `folder`; return its best's evidence, or why there is none."""
    call = [sys.executable, "-c", "from cuda_agent.cli import main; main()", "optimize", problem.name]
    call += ["--device", device.name, "--protocol", protocol, "--out", str(folder), "--seconds", str(seconds)]
    try:
        ran = subprocess.run(call, capture_output=True, text=True, timeout=seconds + 120, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds + 120:.0f} s"
    best = folder / "best" / "evidence.json"
    if best.is_file():
        return codec.read(best, Evidence)
    said = " ".join((ran.stderr or ran.stdout).split())
    return f"exit code {ran.returncode}: {said[-400:]}"


def row_of(evidence: Evidence, *, problem: Problem, who: str, seconds: float) -> Row:
    """Return what the table holds of a judgement."""
    verdict = evidence.verdict
    errors = evidence.errors
    timing = verdict.timing if isinstance(verdict, Passed) else None
    times: tuple[ContenderTime, ...] = timing.times if timing else ()
    ratios: tuple[Speedup, ...] = timing.speedups if timing else ()
    return Row(
        problem=problem.name,
        who=who,
        verdict=msgspec.to_builtins(verdict)["kind"],
        message=verdict.message,
        seconds=round(seconds, 1),
        relative_rms_error=max((error.relative_rms_error for error in errors), default=None),
        tolerance_share=max((error.worst_ratio for error in errors), default=None),
        times_us={time.contender: time.device_median_us for time in times},
        wall_us={time.contender: time.wall_median_us for time in times},
        speedups={ratio.baseline: ratio.device for ratio in ratios},
        baseline_failures=dict(timing.baseline_failures) if timing else {},
        reward=evidence.reward.value,
    )


class Store:
    """The files after `--out`."""

    def __init__(self, folder: Path, table: Table, cache: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._table = table
        self._cache = cache
        self._evidence: dict[str, bytes] = {}

    def add(self, row: Row, evidence: Evidence | None) -> None:
        """Note a row and write everything anew."""
        self._table.rows.append(row)
        if evidence is not None:
            name = f"{row.problem.replace('/', '_')}.{row.who}.json"
            # The binary's place on this machine means nothing elsewhere.
            build = None if evidence.build is None else msgspec.structs.replace(evidence.build, library="")
            self._evidence[name] = codec.encode(msgspec.structs.replace(evidence, build=build))
        (self._folder / "table.json").write_bytes(msgspec.json.format(msgspec.json.encode(self._table), indent=1))
        (self._folder / "table.md").write_text(markdown(self._table), encoding="utf-8")
        _pack(self._folder / "evidence.tar", self._evidence)
        known = {path.name: path.read_bytes() for path in sorted((self._cache / "baselines").glob("*.json"))}
        _pack(self._folder / "baselines.tar", known)


def _pack(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = int(time.time())
            archive.addfile(member, io.BytesIO(data))


def unpack_baselines(archive: Path, cache: Path) -> None:
    """Put the baselines of an earlier run into the cache folder; those of another machine are never found there."""
    folder = cache / "baselines"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


CONTENDERS = ("candidate", "eager", "compiled", "max-autotune")


def markdown(table: Table) -> str:
    """Return `table.md`."""
    passed = [row for row in table.rows if row.verdict == "passed"]
    lines = [
        f"{table.date}, {table.gpu}, driver {table.driver}, torch {table.torch}, {table.toolkit}, protocol {table.protocol}",
        "",
        f"    {table.command}",
        "",
        f"{len(passed)} of {len(table.rows)} passed. Device times are medians in microseconds with a cold L2; speed-ups are "
        "baseline over candidate, with 95 % intervals. The error is the worst relative RMS error against the float64 "
        "oracle over all trials, its share that of the worst element in what is allowed.",
        "",
        "| problem | who | verdict | error | share | candidate | eager | compiled | max-autotune | vs eager | vs compiled "
        "| vs max-autotune | reward | s |",
        "| --- | --- | --- " + "| ---: " * 11 + "|",
    ]
    for row in table.rows:
        cells = [row.problem, row.who, row.verdict]
        cells.append("" if row.relative_rms_error is None else f"{row.relative_rms_error:.1e}")
        cells.append("" if row.tolerance_share is None else f"{row.tolerance_share:.1%}")
        cells += [_time(row.times_us.get(name), row.baseline_failures.get(name)) for name in CONTENDERS]
        cells += [_ratio(row.speedups.get(name)) for name in CONTENDERS[1:]]
        cells.append("" if row.reward is None else f"{row.reward:g}")
        cells.append(f"{row.seconds:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    notes = [row for row in table.rows if row.verdict != "passed" and row.message]
    if notes:
        lines += ["", *(f"- {row.problem}, {row.who}: {row.message.partition(chr(10))[0][:300]}" for row in notes)]
    return "\n".join(lines) + "\n"


def _time(interval: Interval | None, failure: str | None) -> str:
    return ("failed" if failure else "") if interval is None else f"{interval.point:.1f}"


def _ratio(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.point:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def hand_written(root: Path, wanted: list[str]) -> Iterator[tuple[Problem, Path]]:
    """Yield the candidate folders below `root`, each named like its problem, in the suite's order."""
    order = {problem.name: number for number, problem in enumerate(load_suite("builtin"))}
    found = []
    for file in sorted(root.rglob("model_new.py")):
        problem = load_problem(file.parent.relative_to(root).as_posix())
        if not wanted or problem.name in wanted:
            found.append((problem, file.parent))
    yield from sorted(found, key=lambda pair: order.get(pair[0].name, len(order)))


def jobs(options: argparse.Namespace) -> Iterator[tuple[Problem, str, Action, Path]]:
    """Yield what is to be judged: hand-written candidates first, then the composer's."""
    wanted = [load_problem(name).name for name in options.problems.split(",") if name]
    if options.candidates.is_dir():
        for problem, folder in hand_written(options.candidates, wanted):
            yield problem, "hand", judge, folder
    if options.composer:
        work = options.work / "runs"
        for problem in load_suite("builtin"):
            if not wanted or problem.name in wanted:
                action = partial(optimize, seconds=options.composer_seconds)
                yield problem, "composer", action, work / problem.name.replace("/", "_")


def say(text: str) -> None:
    """Print progress at once."""
    print(text, file=sys.stderr, flush=True)


def parsed() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for tables, evidence and baselines")
    parser.add_argument("--candidates", type=Path, default=Path("examples/native"), help="folder of candidate folders")
    parser.add_argument("--composer", action="store_true", help="let the composer work on every problem too")
    parser.add_argument("--composer-seconds", type=float, default=120.0, help="its budget for one problem")
    parser.add_argument("--problems", default="", help="names, separated by commas; default: all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing that may end after this")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--protocol", default="strict", choices=("strict", "paper"))
    parser.add_argument("--baselines", type=Path, help="baselines.tar of an earlier run on the same kind of machine")
    parser.add_argument("--work", type=Path, default=Path("/tmp/judge-suite"), help="cache and run folders")
    return parser.parse_args()


def main() -> int:
    """Judge everything that fits, and return how many that were judged did not pass."""
    started = time.monotonic()
    options = parsed()
    cache = options.work / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["CUDA_AGENT_CACHE"] = str(cache)
    if options.baselines is not None:
        unpack_baselines(options.baselines, cache)
    device = open_device(options.device)
    toolkit = discover()
    table = Table(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=shlex.join(["python", *sys.argv]),
        gpu=device.model,
        driver=device.driver,
        torch=assemble.environment(toolkit).torch,
        toolkit=toolkit.name,
        protocol=options.protocol,
        rows=[],
    )
    store = Store(options.out, table, cache)
    lately: dict[str, list[float]] = {"hand": [FIRST_GUESS_S], "composer": [FIRST_GUESS_S]}
    for problem, who, action, folder in jobs(options):
        begun = time.monotonic()
        left = options.seconds - (begun - started)
        if left < max(lately[who]):
            store.add(Row(problem=problem.name, who=who, verdict="not run", message="the time was used up"), None)
            continue
        say(f"[{begun - started:6.1f} s] {problem.name}, {who}")
        try:
            result = action(problem, device, options.protocol, folder)
        except CudaAgentError as error:
            result = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begun
        lately[who] = [*lately[who], seconds][-2:]
        if isinstance(result, str):
            say(f"    none: {result[:200]}")
            row = Row(problem=problem.name, who=who, verdict="no candidate", message=result, seconds=round(seconds, 1))
            store.add(row, None)
        else:
            say(f"    {type(result.verdict).__name__} after {seconds:.1f} s")
            store.add(row_of(result, problem=problem, who=who, seconds=seconds), result)
    print(markdown(table))
    return sum(row.verdict not in ("passed", "not run", "no candidate") for row in table.rows)


if __name__ == "__main__":
    sys.exit(min(main(), 100))
