"""Compile the baselines' kernels of many problems side by side, before a GPU is measured on.

    python scripts/gpu/compile_ahead.py --work /tmp/judge-suite [--problems softmax,gelu] [--processes 8] [--seconds 240]

`scripts/gpu/judge_suite.py` with the same `--work` then finds the compiled Triton kernels. Only these are kept: which
of them torch.compile chooses it finds out again when it has the GPU for itself, since what it timed here is worthless.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuda_agent.problems.loader import load_problem, load_suite
from cuda_agent.records.problem import Problem

ONE = """
import sys, torch
from cuda_agent.worker.problem_module import LoadedProblem
problem = LoadedProblem(sys.stdin.read(), shapes="gpu", device="cuda:0")
tf32 = problem.precision == "tf32"
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
model = problem.make_model(0)
inputs = problem.inputs("default", 0)
with torch.no_grad():
    for mode in ("default", "max-autotune"):
        torch._dynamo.reset()
        torch.compile(model, mode=mode)(*inputs)
        torch.cuda.synchronize()
"""
"""Compiles one problem's baselines as the stopwatch does."""


def compile_one(problem: Problem, triton: Path, deadline: float) -> str:
    """Return how it went, one word and the seconds."""
    begun = time.monotonic()
    if deadline - begun < 1:
        return "not begun"
    with tempfile.TemporaryDirectory() as inductor:
        environment = os.environ | {
            "TRITON_CACHE_DIR": str(triton),
            "TORCHINDUCTOR_CACHE_DIR": inductor,
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
        }
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ONE],
                input=problem.source,
                text=True,
                capture_output=True,
                env=environment,
                timeout=deadline - begun,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"cut off after {time.monotonic() - begun:.0f} s"
    took = f"{time.monotonic() - begun:.0f} s"
    if ran.returncode:
        return f"failed after {took}: {' '.join(ran.stderr.split())[-200:]}"
    return took


def main() -> None:
    """Compile everything that fits into the time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/judge-suite"), help="as for judge_suite.py")
    parser.add_argument("--problems", default="", help="names, separated by commas; default: all")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this")
    options = parser.parse_args()
    names = [name for name in options.problems.split(",") if name]
    problems = [load_problem(name) for name in names] or list(load_suite("builtin"))
    triton = options.work / "cache" / "triton"
    triton.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + min(options.seconds, 1e6)
    with ThreadPoolExecutor(options.processes) as pool:
        for problem, how in zip(problems, pool.map(lambda p: compile_one(p, triton, deadline), problems), strict=True):
            print(f"{problem.name}: {how}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
