"""Problems in JSONL and parquet data sets, with the columns of KernelBench or CUDA-Agent-Ops-6K or any others.

The column with the code is found by its contents: the one whose texts define `Model` and `get_inputs`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cuda_agent.errors import ProblemError
from cuda_agent.problems.source import is_problem, problem_of
from cuda_agent.records.problem import BrokenProblem, Problem

DATASET_SUFFIXES = (".jsonl", ".parquet")
LOOKED_AT = 50
"""Rows looked at to find the column with the code."""
_NAMES = ("name", "problem_name", "title", "op_name")
_IDS = ("problem_id", "id", "task_id", "index")


def dataset_rows(path: Path) -> tuple[Problem | BrokenProblem, ...]:
    """Return all rows in order; one whose code is no problem is a broken one.

    Raises:
        ProblemError: the file can't be read, or no column holds problems.
    """
    rows = _rows(path)
    column = _code_column(rows, path)
    return tuple(_entry(row, number, column, path) for number, row in enumerate(rows))


def dataset_row(path: Path, row: str) -> Problem:
    """Return the problem of one row: by its number from 0, else by problem id or name; same errors."""
    rows = _rows(path)
    column = _code_column(rows, path)
    if re.fullmatch(r"\d+", row):
        number = int(row)
        if number >= len(rows):
            raise ProblemError(f"{path}#{row}: the data set has {len(rows)} rows, numbered 0 to {len(rows) - 1}.")
    else:
        matching = [n for n, values in enumerate(rows) if row in {str(values.get(key)) for key in (*_NAMES, *_IDS)}]
        if not matching:
            raise ProblemError(
                f"{path}#{row}: no row has that name or id. Rows can be named by number, 0 to {len(rows) - 1}."
            )
        number = matching[0]
    return _problem(rows[number], number, column, path)


def _entry(row: dict[str, Any], number: int, column: str, path: Path) -> Problem | BrokenProblem:
    try:
        return _problem(row, number, column, path)
    except ProblemError as error:
        return BrokenProblem(
            name=_name(row, number, path), origin=f"{path}#{number}", level=_level(row), reason=str(error)
        )


def _problem(row: dict[str, Any], number: int, column: str, path: Path) -> Problem:
    return problem_of(_code(row, column), name=_name(row, number, path), origin=f"{path}#{number}", level=_level(row))


def _name(row: dict[str, Any], number: int, path: Path) -> str:
    name = next((str(row[key]) for key in _NAMES if isinstance(row.get(key), str) and row[key]), "")
    return name or f"{path.stem}#{number}"


def _level(row: dict[str, Any]) -> int | None:
    level = row.get("level")
    return level if isinstance(level, int) else None


def _code(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else ""


def _code_column(rows: list[dict[str, Any]], path: Path) -> str:
    if not rows:
        raise ProblemError(f"{path}: the data set has no rows.")
    columns = list(dict.fromkeys(key for row in rows[:LOOKED_AT] for key in row))
    hits = {column: sum(is_problem(_code(row, column)) for row in rows[:LOOKED_AT]) for column in columns}
    best = max(hits, key=lambda column: hits[column], default="")
    if not best or hits[best] == 0:
        raise ProblemError(
            f"{path}: no column holds problems; there are {', '.join(columns) or 'no columns'}. One column must hold Python "
            "text that defines Model and get_inputs()."
        )
    return best


def _rows(path: Path) -> list[dict[str, Any]]:
    return _parquet(path) if path.suffix == ".parquet" else _jsonl(path)


def _jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 text (byte {error.start}).") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ProblemError(f"{path}: line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise ProblemError(f"{path}: line {number} must be a JSON object; it is {type(row).__name__}.")
        rows.append(row)
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ProblemError(
            f"{path}: reading parquet needs pyarrow. Install it: pip install 'cuda-agent[datasets]'."
        ) from error
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ProblemError(f"{path}: not readable as parquet: {error}.") from error
    return rows
