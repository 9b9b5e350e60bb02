"""Judge candidates with one mistake each beside the good candidate they were made from.

Every bad candidate is a small edit of a good one in `candidates/`; the whole pipeline judges both on the emulated
device. What is asserted of a rejection is what a programmer needs to mend it: where, expected and got, which shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cuda_agent.records.verdict import (
    BrokeContract,
    BuildFailed,
    Cheated,
    Crashed,
    Passed,
    SourceRejected,
    Verdict,
    WrongOutput,
)
from tests.judge.judging import HERE, Court, Edits

MODEL = "model_new.py"
SILU, NORM, SOFTMAX, ARGMAX, MEAN, COLUMNS, OFFSETS = (
    f"kernels/{name}.cu" for name in ("silu", "layer_norm", "softmax", "argmax", "mean_square", "column_sum", "offsets")
)
GOOD = ("silu", "layer_norm", "softmax", "argmax", "mean_square", "column_sum", "offsets")


@dataclass(frozen=True)
class Bad:
    """One mistake, made in a good candidate, and what the judge says of it."""

    mistake: str
    candidate: str
    edits: Edits
    kind: type[Verdict]
    check: str
    says: tuple[str, ...]
    """Parts of the message."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Fields of the verdict."""


OUT_OF_BOUNDS = (
    Bad(
        "no check of the bound",
        "silu",
        {SILU: [("  if (i < size) {", "  {")]},
        Crashed,
        "call fault",
        (
            "model_new.py:13 in forward: silu_launcher(x, y, x.numel())",
            "out-of-bounds global read of 4 bytes at kernels/silu.cu:6 by thread (127,0,0) of block (3,0,0)",
            "0 bytes past the end of 'x' (2044 bytes)",
        ),
        {"case": "variant 1"},
    ),
    Bad(
        "shared memory of half the size",
        "softmax",
        {SOFTMAX: [("float shared[THREADS]", "float shared[THREADS / 2]")]},
        Crashed,
        "call fault",
        ("out-of-bounds shared write of 4 bytes at kernels/softmax.cu:9", "the block has 256 bytes of shared memory"),
    ),
    Bad(
        "a null pointer for scratch",
        "mean_square",
        {MODEL: [("mean_square_launcher(x, partial,", "mean_square_launcher(x, None,")]},
        Crashed,
        "call fault",
        ("kernels/mean_square.cu:15", "a null pointer"),
    ),
    Bad(
        "an input written behind its const",
        "silu",
        {SILU: [("const float value = x[i];", "const float value = x[i]; const_cast<float*>(x)[i] = 0.0f;")]},
        Crashed,
        "call fault",
        ("global write of 4 bytes at kernels/silu.cu:6", "'x' is passed as a const pointer, so it must not be written"),
    ),
)

WRONG_VALUES = (
    Bad(
        "a loop over groups of four without its tail",
        "silu",
        {SILU: [("if (i < size)", "if (i < size / 4 * 4)")]},
        WrongOutput,
        "values",
        ("3 of 511 values are wrong", "These values were never written", "float32[7, 73]", "check the tail"),
        {"case": "variant 1", "first_bad_index": (6, 70), "bad_count": 3},
    ),
    Bad(
        "an index that is right for whole groups of eight only",
        "silu",
        {SILU: [("y[i] = value", "y[size % 8 == 0 ? i : size - 1 - i] = value")]},
        WrongOutput,
        "values",
        ("differs at [0, 0]", "Case 'variant 1'", "inputs float32[7, 73]"),
        {"case": "variant 1"},
    ),
    Bad(
        "a result that is never written",
        "silu",
        {SILU: [("if (i < size)", "if (i < size && size < 0)")]},
        WrongOutput,
        "values",
        ("512 of 512 values are wrong", "These values were never written"),
    ),
    Bad(
        "an accumulator that is never cleared",
        "column_sum",
        {COLUMNS: [("  clear_kernel<<<(columns + 31) / 32, 32, 0, stream>>>(y, columns);\n", "")]},
        WrongOutput,
        "values",
        ("24 of 24 values are wrong", "These values were never written"),
    ),
    Bad(
        "scratch that no block wrote",
        "mean_square",
        {
            MEAN: [("stream>>>(partial, y, blocks, size);", "stream>>>(partial, y, blocks + 2, size);")],
            MODEL: [("torch.empty(BLOCKS,", "torch.empty(BLOCKS + 2,")],
        },
        WrongOutput,
        "values",
        ("1 of 1 values are wrong",),
        {"first_bad_index": ()},
    ),
    Bad(
        "a row without the rest that no warp fills",
        "layer_norm",
        {NORM: [("c < columns; c += 32) sum +=", "c < columns / 32 * 32; c += 32) sum +=")]},
        WrongOutput,
        "values",
        ("420 of 420 values are wrong",),
    ),
    Bad(
        "another epsilon",
        "layer_norm",
        {MODEL: [("columns, norm.eps)", "columns, 1e-5)")]},
        WrongOutput,
        "values",
        ("differs at [0, 0]: expected -1.371", "got -1.373"),
    ),
    Bad(
        "no bias",
        "layer_norm",
        {NORM: [(" + bias[c];", ";")]},
        WrongOutput,
        "values",
        ("420 of 420 values are wrong",),
    ),
    Bad(
        "weights taken for ones",
        "layer_norm",
        {NORM: [(" * weight[c] + bias[c];", " + bias[c];")]},
        WrongOutput,
        "values",
        ("of 420 values are wrong",),
    ),
    Bad(
        "the unbiased variance for the biased one",
        "layer_norm",
        {NORM: [("sum_warp(squares) / columns", "sum_warp(squares) / (columns - 1)")]},
        WrongOutput,
        "values",
        ("expected -1.371", "got -1.361", "Case 'default': the output is float32[6, 70]"),
    ),
    Bad(
        "no maximum subtracted before the exponential",
        "softmax",
        {
            SOFTMAX: [
                ("sum += expf(row[c] - largest)", "sum += expf(row[c])"),
                ("= expf(row[c] - largest) / sum", "= expf(row[c]) / sum"),
            ]
        },
        WrongOutput,
        "values",
        ("got nan", "with inputs '"),
    ),
    Bad(
        "the last of equal values",
        "argmax",
        {ARGMAX: [("return a_index < b_index;", "return a_index > b_index;")]},
        WrongOutput,
        "values",
        ("integers and booleans must be equal", "the output is int64[9], inputs float32[9, 100]"),
        {"first_bad_index": (1,)},
    ),
    Bad(
        "NaN passed over",
        "argmax",
        {ARGMAX: [("if (a_nan != b_nan) return a_nan;", "if (a_nan || b_nan) return b_nan && !a_nan;")]},
        WrongOutput,
        "values",
        ("3 of 9 values are wrong",),
        {"first_bad_index": (0,)},
    ),
    Bad(
        "a product in 32 bits",
        "offsets",
        {OFFSETS: [("static_cast<long long>(rows[i]) * row_bytes", "rows[i] * row_bytes")]},
        WrongOutput,
        "values",
        ("98 of 100 values are wrong", "expected 51502579712, got -37027840"),
    ),
    Bad(
        "a result kept for later calls",
        "silu",
        {
            MODEL: [
                (
                    "        y = torch.empty_like(x)\n",
                    "        if x.shape in self.results:\n"
                    "            return self.results[x.shape].clone()\n"
                    "        y = self.results[x.shape] = torch.empty_like(x)\n",
                )
            ]
        },
        WrongOutput,
        "values",
        ("The result of trial 1 had the very same bytes: don't keep results between calls",),
    ),
)

RACES = (
    Bad(
        "no barrier before a tree of sums",
        "softmax",
        {SOFTMAX: [("  shared[threadIdx.x] = sum;\n  __syncthreads();\n", "  shared[threadIdx.x] = sum;\n")]},
        WrongOutput,
        "values",
        ("float32[5, 300]",),
    ),
    Bad(
        "no barrier between two uses of shared memory",
        "softmax",
        {SOFTMAX: [("  __syncthreads();  // all have read the maximum\n", "")]},
        WrongOutput,
        "values",
        ("differs at [0, ", "of 1500 values are wrong"),
    ),
    Bad(
        "a sum of many threads without atomics",
        "column_sum",
        {COLUMNS: [("atomicAdd(&y[column], x[row * columns + column]);", "y[column] += x[row * columns + column];")]},
        WrongOutput,
        "values",
        ("differs at [0]: expected 20.129", "24 of 24 values are wrong"),
    ),
)

STRUCTURE = (
    Bad(
        "a result in double precision",
        "silu",
        {MODEL: [("return y", "return y.double()")]},
        BrokeContract,
        "output dtype",
        ("The output must be float32, as the reference's is; it is float64",),
        {"case": "default"},
    ),
    Bad(
        "indices of 32 bits",
        "argmax",
        {
            ARGMAX: [
                ("kernel(const float* x, long long* y", "kernel(const float* x, int* y"),
                ("launcher(const float* x, long long* y", "launcher(const float* x, int* y"),
            ],
            MODEL: [("torch.int64", "torch.int32")],
        },
        BrokeContract,
        "output dtype",
        ("must be int64, as the reference's is; it is int32",),
    ),
    Bad(
        "memory of float16 for a kernel that writes float32",
        "silu",
        {MODEL: [("torch.empty_like(x)", "torch.empty_like(x, dtype=torch.float16)")]},
        Crashed,
        "call raised",
        ("argument 2 'y' must be a float32 tensor (float*), got torch.float16", "model_new.py:13 in forward"),
    ),
    Bad(
        "a flat result",
        "silu",
        {MODEL: [("return y", "return y.view(-1)")]},
        BrokeContract,
        "output shape",
        ("The output must have shape [8, 64]; it has [512]",),
    ),
    Bad(
        "a tuple around the result",
        "silu",
        {MODEL: [("return y", "return (y,)")]},
        BrokeContract,
        "output structure",
        ("The result must be a tensor; it is a tuple of 1",),
    ),
    Bad(
        "the result in the input's memory",
        "silu",
        {MODEL: [("torch.empty_like(x)", "x")]},
        BrokeContract,
        "inputs unchanged",
        ("The call changed input 0 (float32[8, 64])", "Write to a tensor of your own"),
    ),
    Bad(
        "one buffer for all results",
        "silu",
        {MODEL: [("y = torch.empty_like(x)", "y = self.results.setdefault(x.shape, torch.empty_like(x))")]},
        BrokeContract,
        "fresh output",
        ("This call changed output 0 of the call before", "Allocate every result afresh"),
    ),
    Bad(
        "parameters that the state does not hold",
        "layer_norm",
        {
            MODEL: [
                ("self.norm = nn.LayerNorm(columns, eps=1e-3)", "self.norms = [nn.LayerNorm(columns, eps=1e-3)]"),
                ("norm = self.norm\n", "norm = self.norms[0]\n"),
            ]
        },
        BrokeContract,
        "parameters",
        ("ModelNew lacks norm.weight float32[70]; norm.bias float32[70]",),
    ),
    Bad(
        "parameters under another name",
        "layer_norm",
        {MODEL: [("self.norm = nn", "self.layer = nn"), ("norm = self.norm\n", "norm = self.layer\n")]},
        BrokeContract,
        "parameters",
        ("ModelNew has what Model has not: layer.weight float32[70]", "load_state_dict pre-hook"),
    ),
    Bad(
        "a launcher imported and torch's own function called",
        "silu",
        {
            MODEL: [
                (
                    "        silu_launcher(x, y, x.numel())\n        return y",
                    "        return torch.nn.functional.silu(x)",
                )
            ]
        },
        BrokeContract,
        "torch compute",
        ("torch computed in forward(): silu (512 elements)", "Compute in a kernel"),
    ),
    Bad(
        "a kernel into a dead buffer and torch's own result, as a method of the tensor",
        "silu",
        {MODEL: [("        return y", "        return x.sigmoid().mul_(x)")]},
        BrokeContract,
        "torch compute",
        ("torch computed in forward(): ", "mul_ (", "sigmoid ("),
    ),
    Bad(
        "a kernel into a dead buffer and torch's own result, hidden from the dispatcher",
        "silu",
        {
            MODEL: [
                (
                    "        return y",
                    "        with torch._C._DisableTorchDispatch():\n            return torch.nn.functional.silu(x)",
                )
            ]
        },
        BrokeContract,
        "own kernels",
        ("right in a call in which the candidate's kernels did nothing", "return what its kernels write"),
    ),
    Bad(
        "a kernel into a dead buffer and torch's own result, computed on a thread",
        "silu",
        {
            MODEL: [
                (
                    "        return y",
                    "        import threading\n        box = []\n"
                    "        t = threading.Thread(target=lambda: box.append(torch.nn.functional.silu(x)))\n"
                    "        t.start(); t.join()\n        return box[0]",
                )
            ]
        },
        BrokeContract,
        "own kernels",
        ("right in a call in which the candidate's kernels did nothing",),
    ),
)

TAMPERED = (
    Bad(
        "the note of torch's work taken away, and torch's own result",
        "silu",
        {
            MODEL: [
                (
                    "import torch\n",
                    "import torch\nimport importlib\n"
                    "importlib.import_module('cuda_agent.worker.torch_work').TorchWork.take = lambda self: ()\n",
                ),
                ("        return y", "        return torch.nn.functional.silu(x)"),
            ]
        },
        Cheated,
        "patched functions",
        ("replaced cuda_agent.worker.torch_work.TorchWork.take in its process",),
    ),
    Bad(
        "torch's comparison made to agree with anything, and zeros",
        "silu",
        {
            MODEL: [
                ("import torch\n", "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True\n"),
                ("        return y", "        return y.zero_()"),
            ]
        },
        WrongOutput,
        "values",
        ("got 0",),
    ),
    Bad(
        "Python called from a static initialiser in C++",
        "silu",
        {
            SILU: [
                (
                    'extern "C"',
                    'extern "C" int PyRun_SimpleString(const char*);\n'
                    'static int patched = PyRun_SimpleString("import torch");\nextern "C"',
                )
            ]
        },
        SourceRejected,
        "reaching out",
        ("kernels/*.cu call PyRun_SimpleString", "Remove the call"),
    ),
    Bad(
        "a function looked up by name at run time",
        "silu",
        {
            SILU: [
                (
                    'extern "C"',
                    '#include <dlfcn.h>\nstatic void* found = dlsym(nullptr, "PyRun_SimpleString");\nextern "C"',
                )
            ]
        },
        SourceRejected,
        "reaching out",
        ("kernels/*.cu call dlsym",),
    ),
)

BEFORE_THE_RUN = (
    Bad(
        "torch's own function and no launcher",
        "silu",
        {
            MODEL: [
                ("from cuda_extension import silu_launcher\n", ""),
                (
                    "        silu_launcher(x, y, x.numel())\n        return y",
                    "        return torch.nn.functional.silu(x)",
                ),
            ]
        },
        SourceRejected,
        "launcher use",
        ("model_new.py never imports cuda_extension", "from cuda_extension import silu_launcher"),
    ),
    Bad(
        "a misspelt launcher",
        "silu",
        {MODEL: [("import silu_launcher", "import silu_launch")]},
        SourceRejected,
        "launcher name",
        ("model_new.py:2: uses silu_launch of cuda_extension", "did you mean silu_launcher?"),
    ),
    Bad(
        "a missing semicolon",
        "silu",
        {SILU: [("const float value = x[i];", "const float value = x[i]")]},
        BuildFailed,
        "nvcc",
        ('kernels/silu.cu:7: expected a ";"',),
    ),
    Bad(
        "an undeclared name",
        "silu",
        {SILU: [("const float value = x[i];", "const float value = x[position];")]},
        BuildFailed,
        "nvcc",
        ('kernels/silu.cu:6: identifier "position" is undefined',),
    ),
    Bad(
        "2048 threads a block, and the launch not checked",
        "silu",
        {SILU: [("THREADS = 128", "THREADS = 2048")]},
        Crashed,
        "call raised",
        ("silu_launcher(): a launch failed with cudaErrorInvalidValue", "model_new.py:13 in forward"),
    ),
)


def named(bad: Iterable[Bad]) -> list[Any]:
    return [pytest.param(one, id=f"{one.candidate}: {one.mistake}") for one in bad]


def check(court: Court, bad: Bad, gate: str) -> None:
    problem, folder = HERE / "problems" / f"{bad.candidate}.py", HERE / "candidates" / bad.candidate
    evidence = court.judge(str(problem), folder, bad.edits)
    verdict = evidence.verdict
    assert isinstance(verdict, bad.kind), verdict
    assert (verdict.gate, verdict.check) == (gate, bad.check)
    for part in bad.says:
        assert part in verdict.message
    for name, value in bad.facts.items():
        assert getattr(verdict, name) == value
    assert evidence.reward.value == -1
    reports = {report.gate: report.status for report in evidence.gates}
    assert reports[verdict.gate] == "rejected"
    assert reports["profile"] == "not run"


@pytest.mark.parametrize("name", GOOD)
def test_a_good_candidate_passes(court: Court, name: str) -> None:
    verdict = court.judge(str(HERE / "problems" / f"{name}.py"), HERE / "candidates" / name).verdict
    assert isinstance(verdict, Passed), verdict


@pytest.mark.parametrize("bad", named(OUT_OF_BOUNDS))
def test_memory_that_is_not_the_kernels_is_named_with_file_line_and_thread(court: Court, bad: Bad) -> None:
    check(court, bad, "verify")


@pytest.mark.parametrize("bad", named(WRONG_VALUES))
def test_wrong_values_are_shown_with_index_expected_and_got(court: Court, bad: Bad) -> None:
    check(court, bad, "verify")


@pytest.mark.parametrize("bad", named(RACES))
def test_a_race_gives_wrong_values_in_some_order_of_warps(court: Court, bad: Bad) -> None:
    check(court, bad, "verify")


@pytest.mark.parametrize("bad", named(STRUCTURE))
def test_a_result_or_module_of_another_kind_is_rejected(court: Court, bad: Bad) -> None:
    check(court, bad, "verify")


@pytest.mark.parametrize("bad", named(TAMPERED))
def test_tampering_gains_nothing_and_is_named(court: Court, bad: Bad) -> None:
    check(court, bad, {SourceRejected: "compile"}.get(bad.kind, "verify"))


@pytest.mark.parametrize("bad", named(BEFORE_THE_RUN))
def test_what_can_not_run_is_rejected_with_its_line(court: Court, bad: Bad) -> None:
    check(court, bad, {SourceRejected: "source", BuildFailed: "compile"}.get(bad.kind, "verify"))
