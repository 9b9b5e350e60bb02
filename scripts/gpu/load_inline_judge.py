"""Judge one native candidate as is common today: `load_inline`, five random trials, CUDA events.

    python scripts/gpu/load_inline_judge.py PROBLEM CANDIDATE_FOLDER

Follows KernelBench's evaluation: the sources are built by `torch.utils.cpp_extension.load_inline` behind functions that
take `torch::Tensor`, five inputs are compared by `torch.allclose`, and 100 calls are timed by an event pair each.
Where it had a choice, this takes the faster way: one architecture only, inputs drawn on the GPU, no emptying of
caches. Prints one JSON object with the seconds of each step. The eager reference is not timed: it is taken as known.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cuda_agent.gates.signatures import find_launchers
from cuda_agent.gates.workspace import read_candidate
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.candidate import Candidate, Launcher

TRIALS = 5
TIMED_CALLS = 100
WARM_UP_CALLS = 3
ALLOW_HALF = [
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
]
"""torch's builds switch half arithmetic off, which people who write such kernels switch on again."""
TOLERANCE = 1e-4
"""Source: KernelBench's bound for float32 since Nov 2025."""


def wrapper(launcher: Launcher) -> tuple[str, str]:
    """Return a launcher's declaration and a function with torch's types that calls it."""
    parameters, arguments = [], []
    for parameter in launcher.parameters:
        if parameter.ctype.endswith("*"):
            element = parameter.ctype.removesuffix("*").strip()
            const = "const " if parameter.const else ""
            parameters.append(f"std::optional<at::Tensor> {parameter.name}")
            pointer = f"({parameter.name} ? {parameter.name}->data_ptr() : nullptr)"
            arguments.append(f"reinterpret_cast<{const}{element}*>({pointer})")
        else:
            kind = "double" if parameter.ctype in ("float", "double", "__half", "__nv_bfloat16") else "int64_t"
            kind = "bool" if parameter.ctype == "bool" else kind
            parameters.append(f"{kind} {parameter.name}")
            arguments.append(f"static_cast<{parameter.ctype}>({parameter.name})")
    head = f"void torch_{launcher.name}({', '.join(parameters)})"
    call = f"{launcher.name}({', '.join([*arguments, 'at::cuda::getCurrentCUDAStream()'])});"
    return f"{head};", f"{head} {{ {call} }}"


def build(candidate: Candidate, folder: Path) -> Any:
    """Build the sources of the candidate in `folder` with `load_inline` and return the module."""
    from torch.utils.cpp_extension import load_inline

    launchers = find_launchers(candidate)
    wrappers = [wrapper(launcher) for launcher in launchers]
    sources = [text for name, text in sorted(candidate.files.items()) if name.endswith(".cu")]
    code = ["#include <ATen/cuda/CUDAContext.h>", *sources, *(body for _, body in wrappers)]
    module: Any = load_inline(  # type: ignore[no-untyped-call]
        name=f"candidate_{candidate.id}",
        cpp_sources=["\n".join(["#include <optional>", *(declaration for declaration, _ in wrappers)])],
        cuda_sources=["\n".join(code)],
        functions=[f"torch_{launcher.name}" for launcher in launchers],
        extra_cuda_cflags=["-O3", *ALLOW_HALF],
        extra_include_paths=[str(folder / "kernels")],
    )
    for launcher in launchers:
        setattr(module, launcher.name, getattr(module, f"torch_{launcher.name}"))
    module.strided = lambda tensor: tensor
    return module


def main() -> None:
    """Judge and print."""
    marks = [("start", time.monotonic())]
    problem = load_problem(sys.argv[1])
    candidate_folder = Path(sys.argv[2]).resolve()
    candidate = read_candidate(candidate_folder)
    import torch

    torch.empty(1, device="cuda")
    marks.append(("import torch and make a context", time.monotonic()))
    major, minor = torch.cuda.get_device_capability()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}{'a' if major >= 9 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = folder
        sys.modules["cuda_extension"] = build(candidate, candidate_folder)
    marks.append(("build", time.monotonic()))
    reference: dict[str, Any] = {"__name__": "problem"}
    exec(compile(problem.source, "problem.py", "exec"), reference)
    replaced: dict[str, Any] = {"__name__": "model_new"}
    exec(compile(candidate.files["model_new.py"], "model_new.py", "exec"), replaced)
    with torch.no_grad(), torch.device("cuda"):
        model = reference["Model"](*reference["get_init_inputs"]()).eval()
        model_new = replaced["ModelNew"](*reference["get_init_inputs"]()).eval()
        model_new.load_state_dict(model.state_dict(), strict=False)
        correct = True
        for trial in range(TRIALS):
            torch.manual_seed(trial)
            inputs = reference["get_inputs"]()
            expected, got = model(*inputs), model_new(*inputs)
            torch.cuda.synchronize()
            correct = correct and torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        marks.append(("five trials", time.monotonic()))
        for _ in range(WARM_UP_CALLS):
            model_new(*inputs)
        times = []
        for _ in range(TIMED_CALLS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            model_new(*inputs)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
    marks.append(("timing", time.monotonic()))
    steps = {name: round(at - before, 3) for (_, before), (name, at) in itertools.pairwise(marks)}
    print(json.dumps({"correct": bool(correct), "median_us": statistics.median(times), "steps": steps}))


if __name__ == "__main__":
    main()
