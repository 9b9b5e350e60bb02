"""Every candidate in `examples/native` is correct on the emulated device, and stands on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.records.verdict import Passed
from tests.judge.judging import Court

EXAMPLES = Path(__file__).parents[2] / "examples" / "native"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
ALWAYS = (
    "batch_norm_relu",
    "cross_entropy",
    "cumsum",
    "depthwise_conv_2d",
    "gelu",
    "group_norm",
    "half_scale_softmax",
    "layer_norm",
    "matmul_bias_relu",
    "matvec",
    "mse_loss",
    "row_argmax",
    "softmax",
)
"""One of each way to write a kernel; the others take two minutes more and run with `-m slow`."""


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_an_example_passes_all_gates_that_need_no_gpu(court: Court, name: str) -> None:
    evidence = court.judge(name, EXAMPLES / name)
    assert isinstance(evidence.verdict, Passed), evidence.verdict
    assert evidence.build is not None
    assert evidence.build.warnings == ()
    # Far from the edge: an example shows how accurate good kernels are, not what just passes.
    assert all(error.worst_ratio < 0.5 for error in evidence.errors)


@pytest.mark.parametrize("header", ["row.cuh", "pack.cuh", "product.cuh", "convolution.cuh"])
def test_copies_of_a_header_are_equal(header: str) -> None:
    copies = {path: path.read_text() for path in EXAMPLES.glob(f"*/kernels/{header}")}
    assert len(copies) > 1
    assert len(set(copies.values())) == 1, sorted(map(str, copies))
