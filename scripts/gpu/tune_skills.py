"""Time the composer's kernels of the built-in problems under every tuning of their skills, raw, on one GPU.

    python scripts/gpu/tune_skills.py --out measured [--problems softmax,gelu] [--candidates examples/native]

This is how the skills' default tunings are chosen, not a judgement: everything runs in one process that trusts it. Each
form is compared with eager on one set of inputs, then all forms take turns, with a cold L2 and an event pair around each
call. Writes `tuning.md` and `tuning.json` into the folder after `--out`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuda_agent import assemble
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.toolkit import discover
from cuda_agent.gates.workspace import candidate_of, read_candidate
from cuda_agent.metrics.roofline import floor_us
from cuda_agent.policies.lowering import Lowering, Uncovered
from cuda_agent.policies.module_text import module_text
from cuda_agent.policies.operations import OPERATIONS
from cuda_agent.problems.loader import load_problem, load_suite
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.graph import TraceRequest
from cuda_agent.skills.kernel_text import Tuning
from cuda_agent.skills.program import Unplaceable
from cuda_agent.skills.registry import SKILLS

ROUNDS = 25
COPY_BYTES_PER_US = 4.3e6
"""What a copy in device memory reaches on an H200, bytes read and written; for the floor column only."""


def forms(name: str) -> list[tuple[str, Candidate]] | str:
    """Return a problem's candidates, one for each tuning, or why the composer has none. Runs in a process of its own."""
    from cuda_agent.worker.trace import trace

    problem = load_problem(name)
    try:
        plan = Lowering(trace(TraceRequest(source=problem.source, shapes="gpu"))).plan(OPERATIONS)
        changes: list[dict[str, Any]] = [{}]
        for kernel in plan.kernels:
            changes += [change for change in SKILLS[kernel.skill].tunings if change not in changes]
        found = []
        for change in changes:
            made = []
            for kernel in plan.kernels:
                applies = change in SKILLS[kernel.skill].tunings
                tuning = replace(Tuning(), **change) if applies else Tuning()
                made.append(SKILLS[kernel.skill].generate(kernel.program, tuning))
            files = {f"kernels/{k.program.name}.cu": g.source for k, g in zip(plan.kernels, made, strict=True)}
            files["model_new.py"] = module_text(problem.source, plan, made, name=problem.name)
            label = ", ".join(f"{key}={value}" for key, value in change.items()) or "default"
            found.append((label, candidate_of(files)))
        return found
    except (Uncovered, Unplaceable) as error:
        return str(error)
    except Exception as error:  # a tracer's own failures: reported in the table
        return f"{type(error).__name__}: {error}"


def timed(name: str, built: list[tuple[str, Candidate, Build]]) -> dict[str, Any]:
    """Return the median device time of eager and of every form, and each form's largest difference from eager."""
    import torch

    from cuda_agent.worker.candidate_module import construct, load_module, load_weights, write_out
    from cuda_agent.worker.problem_module import LoadedProblem

    problem = LoadedProblem(load_problem(name).source, shapes="gpu", device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = problem.precision == "tf32"
    reference = problem.make_model(0)
    inputs = problem.inputs("default", 0)
    calls: dict[str, Any] = {"eager": reference}
    for label, candidate, build in built:
        folder = Path(tempfile.mkdtemp()) / "candidate"
        write_out(candidate, folder)
        model = construct(
            load_module(folder, build.library, emulated=False),
            problem.init_inputs(),
            device="cuda",
            training=problem.training,
        )
        load_weights(model, reference.state_dict())
        calls[label] = model
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    result: dict[str, Any] = {"problem": name, "us": {}, "difference": {}}
    with torch.no_grad():
        expected = reference(*inputs)
        moved = sum(t.nbytes for t in [*inputs, *_tensors(expected)] if isinstance(t, torch.Tensor))
        result["floor_us"] = floor_us(moved_bytes=moved, bytes_per_us=COPY_BYTES_PER_US)
        for label, call in calls.items():
            got = call(*inputs)
            result["difference"][label] = max(
                (a.double() - b.double()).abs().max().item()
                for a, b in zip(_tensors(got), _tensors(expected), strict=True)
            )
            del got
        del expected
        times: dict[str, list[float]] = {label: [] for label in calls}
        for _ in range(ROUNDS):
            for label, call in calls.items():
                flush.zero_()
                torch.cuda._sleep(200_000)  # the call is enqueued before the device gets to it
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call(*inputs)
                end.record()
                torch.cuda.synchronize()
                times[label].append(begin.elapsed_time(end) * 1000)
    result["us"] = {label: statistics.median(values) for label, values in times.items()}
    return result


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def markdown(head: list[str], rows: list[dict[str, Any]]) -> str:
    """Return `tuning.md`."""
    lines = [
        *head,
        "",
        f"Median device times of {ROUNDS} calls in microseconds, all forms of a problem in turn in one process, cold L2. "
        "The floor is the bytes of inputs and outputs at 4.3 TB/s. In brackets: eager over this form.",
        "",
        "| problem | floor | eager | forms |",
        "| --- | ---: | ---: | --- |",
    ]
    for row in rows:
        if "us" not in row:
            lines.append(f"| {row['problem']} | | | {row['why'][:160]} |")
            continue
        eager = row["us"]["eager"]
        others = "; ".join(
            f"{label} {us:.1f} [{eager / us:.2f}]"
            + ("" if row["difference"][label] < 1e-2 else f" differs by {row['difference'][label]:.1e}")
            for label, us in row["us"].items()
            if label != "eager"
        )
        lines.append(f"| {row['problem']} | {row['floor_us']:.1f} | {eager:.1f} | {others} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trace and build side by side, then time one problem after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", default="", help="names, separated by commas; default: the whole suite")
    parser.add_argument("--candidates", type=Path, help="folder of hand-written candidates to time as well")
    options = parser.parse_args()
    started = time.monotonic()
    names = [name for name in options.problems.split(",") if name] or [p.name for p in load_suite("builtin")]
    device = open_device("cuda:0")
    toolkit = discover()
    gate = assemble.open_compile_gate(toolkit)
    workers = os.cpu_count() or 4
    with ProcessPoolExecutor(min(workers, 12)) as pool:
        found = dict(zip(names, pool.map(forms, names), strict=True))
    print(f"[{time.monotonic() - started:.0f} s] traced", file=sys.stderr, flush=True)
    for name in names:
        short = load_problem(name).name.partition("/")[2].partition("_")[2]
        hand = options.candidates / short if options.candidates else None
        if hand is not None and hand.is_dir():
            known = found[name]
            found[name] = [*([] if isinstance(known, str) else known), ("by hand", read_candidate(hand))]
    jobs = [(name, label, c) for name, made in found.items() if not isinstance(made, str) for label, c in made]

    def build(job: tuple[str, str, Candidate]) -> Any:
        return gate.build(job[2], target="cuda", architectures=(device.architecture,))

    with ThreadPoolExecutor(workers) as threads:
        builds = list(threads.map(build, jobs))
    print(f"[{time.monotonic() - started:.0f} s] built {len(jobs)}", file=sys.stderr, flush=True)
    versions = assemble.environment(toolkit)
    head = [
        f"{datetime.now(UTC):%Y-%m-%d}, {device.model}, driver {device.driver}, torch {versions.torch}, {toolkit.name}",
        "",
        f"    {shlex.join(['python', *sys.argv])}",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in names:
        made = found[name]
        if isinstance(made, str):
            rows.append({"problem": name, "why": made})
            continue
        built = [
            (label, c, b) for (n, label, c), b in zip(jobs, builds, strict=True) if n == name and isinstance(b, Build)
        ]
        broken = [
            f"{label}: {b.message}"
            for (n, label, _), b in zip(jobs, builds, strict=True)
            if n == name and not isinstance(b, Build)
        ]
        for text in broken:
            print(f"{name} {text[:300]}", file=sys.stderr)
        try:
            rows.append(timed(name, built))
        except Exception as error:  # one problem's failure must not lose the others' figures
            rows.append({"problem": name, "why": f"{type(error).__name__}: {error}"})
        gc.collect()
        print(f"[{time.monotonic() - started:.0f} s] {name}", file=sys.stderr, flush=True)
        (options.out / "tuning.json").write_text(json.dumps(rows, indent=1))
        (options.out / "tuning.md").write_text(markdown(head, rows))
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
