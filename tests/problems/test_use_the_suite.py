"""The built-in suite: every problem can be judged, on a CPU and on a GPU."""

from __future__ import annotations

import ast
import math
from collections import Counter

import pytest

from cuda_agent.errors import ProblemError
from cuda_agent.problems.loader import load_problem, load_suite
from cuda_agent.problems.source import family, has_variants, title
from cuda_agent.records.problem import Case, Problem
from cuda_agent.worker.problem_module import CPU_ELEMENTS, describe

SUITE = load_suite("builtin")

FAMILIES = {
    "pointwise", "fused chain", "row reduction", "column reduction", "arg-reduction", "softmax", "norm", "pooling",
    "scan", "loss", "matrix product", "matrix product with epilogue", "convolution", "convolution with epilogue",
    "small network",
}  # fmt: skip
OPERATIONS = {
    "layer_norm": "LayerNorm", "group_norm": "GroupNorm", "instance_norm": "InstanceNorm", "batch_norm": "BatchNorm",
    "rms_norm": "rsqrt", "conv_1d": "Conv1d", "conv_2d": "Conv2d", "conv_3d": "Conv3d", "depthwise_conv_2d": "groups",
    "conv_transpose_2d": "ConvTranspose2d", "log_softmax": "log_softmax", "cumsum": "cumsum", "row_argmax": "argmax",
    "attention": "softmax", "gru_cell": "sigmoid",
}  # fmt: skip


def elements(case: Case) -> int:
    return sum(math.prod(spec.shape) for spec in (*case.inputs, *case.outputs) if spec.kind == "tensor")


def test_there_are_enough_problems_on_three_levels() -> None:
    levels = Counter(problem.level for problem in SUITE)
    assert set(levels) == {1, 2, 3}
    assert levels.total() >= 40
    assert levels[1] > levels[2] > levels[3] >= 5
    assert len({problem.id for problem in SUITE}) == len({problem.name for problem in SUITE}) == len(SUITE)


def test_every_operator_family_is_covered() -> None:
    assert {family(problem.source) for problem in SUITE} == FAMILIES
    short = {problem.name.rpartition("/")[2].partition("_")[2]: problem.source for problem in SUITE}
    for name, operation in OPERATIONS.items():
        assert operation in short[name], name


@pytest.mark.parametrize("problem", SUITE, ids=[problem.name for problem in SUITE])
def test_it_can_be_judged(problem: Problem) -> None:
    names = {node.name for node in ast.parse(problem.source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert {"Model", "get_inputs", "get_init_inputs", "get_cpu_inputs"} <= names
    assert title(problem.source)
    described = describe(problem.source)
    assert described.cpu_source == ""
    assert {case.origin for case in described.cpu_cases} == {"declared"}
    for case in (*described.cpu_cases, *described.gpu_cases):
        assert any(spec.kind == "tensor" for spec in case.outputs), case.name
    assert max(elements(case) for case in described.cpu_cases) + described.parameter_count < CPU_ELEMENTS
    # A candidate tuned to the GPU's default shape alone must not pass.
    assert has_variants(problem.source)
    shapes = [tuple(spec.shape for spec in case.inputs) for case in described.gpu_cases]
    assert len(set(shapes)) == len(shapes) >= 2
    assert len({tuple(spec.shape for spec in case.inputs) for case in described.cpu_cases}) >= 2
    # Large enough for a GPU to be busy, small enough for its memory with copies for cold caches.
    assert 2**20 < elements(described.gpu_cases[0]) < 2**31
    assert [[spec.dtype for spec in case.inputs] for case in described.gpu_cases[:1]] == [
        [spec.dtype for spec in case.inputs] for case in described.cpu_cases[:1]
    ]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("level1/7_softmax", "level1/7_softmax"),
        ("softmax", "level1/7_softmax"),
        ("7_softmax", "level1/7_softmax"),
        ("temperature", "level2/6_masked_temperature_softmax"),
    ],
)
def test_it_is_found_by_any_name_that_fits_one(spec: str, name: str) -> None:
    problem = load_problem(spec)
    assert (problem.name, problem.origin) == (name, "builtin")


def test_a_name_that_fits_many_or_none_is_answered_with_names() -> None:
    with pytest.raises(
        ProblemError, match=r"softma: \d built-in problems have that in their name: level1/7_softmax, .* Name one"
    ):
        load_problem("softma")
    with pytest.raises(
        ProblemError, match=r"sofmtax: there is no such file and no such built-in problem. Did you mean softmax"
    ):
        load_problem("sofmtax")
