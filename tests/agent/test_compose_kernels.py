"""The composer writes correct kernels for what it covers, and names what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.records.verdict import Passed
from cuda_agent.store.run_folder import write_candidate
from tests.agent.running import PROBLEMS, optimize

KERNELS = {
    "equal_sizes": 2,
    "narrow_types": 3,
    "nested_modules": 1,
    "norms": 3,
    "reductions": 6,
    "scalar_operations": 1,
    "shapes": 4,
    "stored_between": 9,
    "structures": 1,
}
"""How many kernels each of `problems/` takes: what may share one does."""


@pytest.mark.parametrize("name", sorted(path.stem for path in PROBLEMS.glob("*.py")))
def test_composed_kernels_pass_the_strict_protocol(name: str, tmp_path: Path) -> None:
    ending, turns = optimize(str(PROBLEMS / f"{name}.py"), tmp_path / "run")
    assert ending.reason == "submitted", ending.note
    assert ending.best is not None
    assert isinstance(ending.best.verdict, Passed)
    # At the first attempt: no kernel needed its simpler form.
    assert all(turn.result.ok for turn in turns)
    kernels = [file for file in ending.best.candidate.files if file.startswith("kernels/")]
    assert len(kernels) == KERNELS[name]


def test_the_best_folder_holds_the_candidate_that_was_judged(tmp_path: Path) -> None:
    ending, _ = optimize("gelu", tmp_path / "run")
    assert ending.best is not None
    write_candidate(ending.best.candidate, tmp_path / "expected")
    for name in ending.best.candidate.files:
        assert (tmp_path / "run" / "best" / name).read_text() == (tmp_path / "expected" / name).read_text()
    assert (tmp_path / "run" / "best" / "evidence.json").is_file()


NOT_COVERED = {
    "mlp": ["linear (no kernel for it)"],
    "column_mean": ["mean (sum over dimension 0 of 257x96: only the last dimensions can be reduced)"],
    "max_pool_2d": ["max_pool2d_with_indices (no kernel for it)"],
    "gru_cell": ["select", "linear"],
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_is_named_and_nothing_is_submitted(name: str, tmp_path: Path) -> None:
    ending, turns = optimize(name, tmp_path / "run")
    assert (ending.reason, ending.best, list(turns)) == ("gave up", None, [])
    for part in NOT_COVERED[name]:
        assert part in ending.note


def test_data_dependent_control_flow_is_named(tmp_path: Path) -> None:
    problem = tmp_path / "branchy.py"
    problem.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2 if x.sum() > 0 else x * 3\n"
        "def get_inputs(): return [torch.randn(8, 16)]\n"
        "def get_init_inputs(): return []\n"
    )
    ending, _ = optimize(str(problem), tmp_path / "run")
    assert ending.reason == "gave up"
    assert "Data-dependent control flow" in ending.note
