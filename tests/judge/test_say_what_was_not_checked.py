"""A check that could not run is part of the verdict."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.gates.workspace import candidate_of
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.verdict import Passed
from tests.agent.running import quiet_session
from tests.agent.test_run_the_loop import KERNEL, MODEL, PROBLEM


def test_a_reference_that_can_not_run_in_float64_is_named_in_the_verify_report(tmp_path: Path) -> None:
    path = tmp_path / "single.py"
    path.write_text(PROBLEM.replace("return 2 * x", "assert x.dtype == torch.float32\n        return 2 * x"))
    with quiet_session(load_problem(str(path))) as session:
        evidence = session.judge.judge(candidate_of({"model_new.py": MODEL, "kernels/scale.cu": KERNEL}))
    assert isinstance(evidence.verdict, Passed)
    (report,) = (report for report in evidence.gates if report.gate == "verify")
    assert "Results are compared with the reference itself" in report.message
