"""Name a problem: a file, a tree, a row of a data set or a built-in one; or learn why it is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.errors import ProblemError
from cuda_agent.problems.loader import load_problem, load_suite, survey_suite
from cuda_agent.problems.source import family, identity, problem_of, title
from cuda_agent.records.problem import BrokenProblem, Problem

SOFTMAX = '''"""Softmax over rows."""

import torch
from torch import nn


class Model(nn.Module):
    """The reference."""

    def forward(self, x):
        return torch.softmax(x, dim=-1)  # over the row


def get_inputs():
    return [torch.randn(8, 100)]


def get_init_inputs():
    return []
'''

KERNELBENCH = {"code": SOFTMAX, "level": 1, "name": "23_Softmax", "problem_id": 23}
"""One row with the columns of KernelBench."""
OPS_6K = {"ops": '["torch.softmax"]', "data_source": "torch#1", "code": SOFTMAX}
"""One row with the columns of CUDA-Agent-Ops-6K."""


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path


class TestFiles:
    def test_a_file_is_named_by_itself_and_its_level_folder(self, tmp_path: Path) -> None:
        (tmp_path / "level1").mkdir()
        for name in ("level1/12_softmax.py", "plain.py"):
            (tmp_path / name).write_text(SOFTMAX)
        one, other = (load_problem(str(tmp_path / name)) for name in ("level1/12_softmax.py", "plain.py"))
        assert (one.name, one.level) == ("level1/12_softmax", 1)
        assert (other.name, other.level, other.origin) == ("plain", None, str(tmp_path / "plain.py"))
        assert one.id == other.id

    def test_a_tree_is_read_in_natural_order_and_passes_over_what_is_no_problem(self, tmp_path: Path) -> None:
        for name in ("level2/1_b.py", "level1/10_c.py", "level1/2_a.py", "__pycache__/x.py", ".git/y.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(SOFTMAX)
        (tmp_path / "tools.py").write_text("def tool():\n    pass\n")
        (tmp_path / "level1" / "3_broken.py").write_text("class Model:\n    pass\n")
        problems = load_suite(str(tmp_path))
        assert [(p.name, p.level) for p in problems] == [("level1/2_a", 1), ("level1/10_c", 1), ("level2/1_b", 2)]
        (broken,) = [entry for entry in survey_suite(str(tmp_path)) if isinstance(entry, BrokenProblem)]
        assert broken.name == "level1/3_broken"
        assert "get_inputs is missing" in broken.reason

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"x.py: the file is empty"),
            ("def f(:", r"x.py: not Python \(line 1\): invalid syntax. Fix the file."),
            (SOFTMAX.replace("class Model", "class Modul"), r"x.py: .*; Model is missing \(it defines Modul\). Add it"),
            (SOFTMAX.replace("get_inputs", "get_input"), r"x.py: .*; get_inputs is missing \(it defines get_in"),
            ("x = 1", r"x.py: .*; Model is missing. Add it, or check that this is the file you meant."),
        ],
    )
    def test_a_file_that_is_no_problem_says_what_it_lacks(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "x.py").write_text(text)
        with pytest.raises(ProblemError, match=message):
            load_problem(str(tmp_path / "x.py"))

    def test_a_wrong_path_is_answered_with_what_lies_near(self, tmp_path: Path) -> None:
        (tmp_path / "softmax.py").write_text(SOFTMAX)
        with pytest.raises(ProblemError, match=r"there is no such file. Did you mean .*/softmax.py\?"):
            load_problem(str(tmp_path / "sofmax.py"))
        with pytest.raises(ProblemError, match=r"a directory holds many problems. Name one file in it, or list them"):
            load_problem(str(tmp_path))
        (tmp_path / "empty").mkdir()
        with pytest.raises(ProblemError, match=r"no problem in this directory"):
            load_suite(str(tmp_path / "empty"))
        with pytest.raises(ProblemError, match=r"there is no such suite. Use builtin, a directory, or"):
            load_suite(str(tmp_path / "none"))
        (tmp_path / "latin.py").write_bytes("# é".encode("latin-1"))
        with pytest.raises(ProblemError, match=r"latin.py: not UTF-8 text \(byte 2\)"):
            load_problem(str(tmp_path / "latin.py"))


@pytest.mark.parametrize("write", [jsonl, parquet])
class TestDataSets:
    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            KERNELBENCH,
            KERNELBENCH | {"name": "24_Other", "problem_id": 24, "code": SOFTMAX.replace("100", "200")},
        ]

    def test_kernelbench_rows_are_found_by_number_name_and_kept_with_their_level(
        self, tmp_path: Path, write: Any
    ) -> None:
        path = write(tmp_path / f"level_1.{write.__name__}", self.rows)
        problems = load_suite(str(path))
        assert [(p.name, p.level, p.origin) for p in problems] == [
            ("23_Softmax", 1, f"{path}#0"),
            ("24_Other", 1, f"{path}#1"),
        ]
        assert load_problem(f"{path}#1") == load_problem(f"{path}#24_Other") == problems[1]

    def test_ops_6k_rows_have_no_names_of_their_own(self, tmp_path: Path, write: Any) -> None:
        path = write(tmp_path / f"ops.{write.__name__}", [OPS_6K, OPS_6K])
        assert [(p.name, p.level) for p in load_suite(str(path))] == [("ops#0", None), ("ops#1", None)]
        assert load_problem(f"{path}#1").source == SOFTMAX

    def test_the_code_is_found_in_a_column_of_any_name(self, tmp_path: Path, write: Any) -> None:
        rows = [{"title": "t", "prompt": "write class Model", "reference": SOFTMAX, "solution": "class ModelNew: pass"}]
        path = write(tmp_path / f"x.{write.__name__}", rows)
        assert load_problem(f"{path}#0").source == SOFTMAX

    def test_without_a_code_column_the_columns_are_listed(self, tmp_path: Path, write: Any) -> None:
        path = write(tmp_path / f"x.{write.__name__}", [{"question": "what?", "answer": "class Model: pass"}])
        with pytest.raises(
            ProblemError, match=r"no column holds problems; there are question, answer. One column must hold"
        ):
            load_suite(str(path))

    def test_a_row_that_is_no_problem_does_not_spoil_the_rest(self, tmp_path: Path, write: Any) -> None:
        path = write(tmp_path / f"x.{write.__name__}", [*self.rows, KERNELBENCH | {"code": "broken (", "name": "bad"}])
        assert [type(entry) for entry in survey_suite(str(path))] == [Problem, Problem, BrokenProblem]
        assert len(load_suite(str(path))) == 2
        with pytest.raises(ProblemError, match=rf"{path.name}#2: not Python \(line 1\)"):
            load_problem(f"{path}#2")

    def test_a_wrong_row_says_how_many_there_are(self, tmp_path: Path, write: Any) -> None:
        path = write(tmp_path / f"x.{write.__name__}", self.rows)
        with pytest.raises(ProblemError, match=r"#7: the data set has 2 rows, numbered 0 to 1"):
            load_problem(f"{path}#7")
        with pytest.raises(ProblemError, match=r"#none: no row has that name or id"):
            load_problem(f"{path}#none")
        with pytest.raises(ProblemError, match=r"a data set holds many problems. Name one as .*#ROW"):
            load_problem(str(path))


class TestBrokenDataSets:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("x.jsonl", b"", r"the data set has no rows"),
            ("x.jsonl", b'{"code": "a"}\nnonsense\n', r"line 2 is not JSON"),
            ("x.jsonl", b"[1, 2]\n", r"line 1 must be a JSON object; it is list"),
            ("x.jsonl", b"\xff", r"not UTF-8 text \(byte 0\)"),
            ("x.parquet", b"PAR1 not really", r"not readable as parquet"),
        ],
    )
    def test_a_broken_data_set_says_where(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ProblemError, match=message):
            load_suite(str(tmp_path / name))

    def test_a_missing_data_set_is_answered_with_what_lies_near(self, tmp_path: Path) -> None:
        jsonl(tmp_path / "level_1.jsonl", [KERNELBENCH])
        with pytest.raises(ProblemError, match=r"there is no such data set. Did you mean .*level_1.jsonl"):
            load_problem(f"{tmp_path}/level1.jsonl#0")


class TestIdentity:
    @pytest.mark.parametrize(
        "same",
        [
            SOFTMAX.replace("  # over the row", ""),
            SOFTMAX.replace('"""Softmax over rows."""\n\n', ""),
            SOFTMAX.replace('    """The reference."""\n\n', ""),
            SOFTMAX.replace("\n\n\n", "\n\n\n\n# section\n\n"),
            SOFTMAX.replace(
                "torch.softmax(x, dim=-1)", "(torch.softmax(\n            x,\n            dim = -1,\n        ))"
            ),
            SOFTMAX.replace('"""The reference."""', "'''Another text.'''"),
        ],
        ids=["comment", "module docstring", "class docstring", "blank lines", "layout", "docstring"],
    )
    def test_comments_layout_and_docstrings_do_not_count(self, same: str) -> None:
        assert same != SOFTMAX
        assert identity(same) == identity(SOFTMAX)

    @pytest.mark.parametrize(
        "change", [("dim=-1", "dim=0"), ("100", "101"), ("softmax(x", "log_softmax(x"), ("Model", "model")]
    )
    def test_code_counts(self, change: tuple[str, str]) -> None:
        assert identity(SOFTMAX.replace(*change)) != identity(SOFTMAX)

    def test_it_is_the_id_of_the_record(self) -> None:
        problem = problem_of(SOFTMAX, name="x", origin="here")
        assert problem.id == identity(SOFTMAX)
        assert len(problem.id) == 16
        assert title(SOFTMAX) == "Softmax over rows."
        assert family('"""T.\n\nFamily: soft max.\nMore.\n"""') == "soft max"
