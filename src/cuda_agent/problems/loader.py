"""Finds problems: a file, a directory tree, a row of a data set, or a name in the built-in suite."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from cuda_agent.errors import ProblemError
from cuda_agent.problems.datasets import DATASET_SUFFIXES, dataset_row, dataset_rows
from cuda_agent.problems.source import problem_of, resembles_problem
from cuda_agent.records.problem import BrokenProblem, Problem

BUILTIN = "builtin"
SUITE_FOLDER = Path(__file__).parent / "suite"


def load_problem(spec: str) -> Problem:
    """Return the problem that `spec` names.

    `spec` is a path to a KernelBench-form file; `DATASET#ROW` with a JSONL or parquet file and a row's number (from
    0), problem id or name; or the name of a built-in problem, whole (`level1/7_softmax`), without its number
    (`softmax`), or any part of it that names one only.

    Raises:
        ProblemError: there is no such problem, or it is not one.
    """
    path_text, _, row = spec.partition("#")
    path = Path(path_text)
    if path.suffix in DATASET_SUFFIXES:
        if not path.is_file():
            raise ProblemError(f"{path}: there is no such data set.{_nearby(path)}")
        if not row:
            raise ProblemError(
                f"{spec}: a data set holds many problems. Name one as {path}#ROW (a number from 0, or a name)."
            )
        return dataset_row(path, row)
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise ProblemError(
            f"{spec}: a directory holds many problems. Name one file in it, or list them: problems list {spec}."
        )
    if path.suffix == ".py" or path.is_absolute():
        raise ProblemError(f"{spec}: there is no such file.{_nearby(path)}")
    return _builtin(spec)


def load_suite(spec: str) -> tuple[Problem, ...]:
    """Return all problems of `builtin`, of a directory tree, of a data set, or of one file; broken ones are left out.

    Raises:
        ProblemError: there is no such suite, or it holds no problem.
    """
    entries = survey_suite(spec)
    problems = tuple(entry for entry in entries if isinstance(entry, Problem))
    if entries and not problems:
        raise ProblemError(f"{spec}: all its problems are broken. The first one: {_first_reason(entries)}")
    return problems


def survey_suite(spec: str) -> tuple[Problem | BrokenProblem, ...]:
    """Return everything in a suite that is a problem, or is meant to be one and can't be used, in natural order.

    Raises:
        ProblemError: there is no such suite, or nothing in it is meant to be a problem.
    """
    if spec == BUILTIN:
        return _from_tree(SUITE_FOLDER, BUILTIN)
    path = Path(spec)
    if path.suffix in DATASET_SUFFIXES and path.is_file():
        return dataset_rows(path)
    if path.is_dir():
        entries = _from_tree(path, str(path))
        if not entries:
            raise ProblemError(
                f"{spec}: no problem in this directory. A problem is a .py file that defines Model and get_inputs(), such "
                "as level1/12_softmax.py."
            )
        return entries
    if path.is_file():
        return (_from_file(path),)
    raise ProblemError(
        f"{spec}: there is no such suite. Use {BUILTIN}, a directory, or a .jsonl or .parquet file.{_nearby(path)}"
    )


def _from_file(path: Path) -> Problem:
    level = re.fullmatch(r"level_?(\d+)", path.parent.name)
    name = f"{path.parent.name}/{path.stem}" if level else path.stem
    return problem_of(_text(path), name=name, origin=str(path), level=int(level[1]) if level else None)


def _from_tree(folder: Path, origin: str) -> tuple[Problem | BrokenProblem, ...]:
    """Return what is below `folder`, in natural order; files that are not meant to be problems are passed over."""
    entries: list[Problem | BrokenProblem] = []
    for path in sorted(folder.rglob("*.py"), key=lambda p: _natural(p.relative_to(folder))):
        relative = path.relative_to(folder)
        if any(part.startswith((".", "__")) for part in relative.parts):
            continue
        level = re.search(r"level_?(\d+)", str(relative.parent)) or re.fullmatch(r"level_?(\d+)", folder.name)
        name, number = str(relative.with_suffix("")), int(level[1]) if level else None
        try:
            text = _text(path)
            if resembles_problem(text):
                where = BUILTIN if origin == BUILTIN else str(path)
                entries.append(problem_of(text, name=name, origin=where, level=number))
        except ProblemError as error:
            entries.append(BrokenProblem(name=name, origin=str(path), level=number, reason=str(error)))
    return tuple(entries)


def _first_reason(entries: tuple[Problem | BrokenProblem, ...]) -> str:
    return next(entry.reason for entry in entries if isinstance(entry, BrokenProblem))


def _builtin(spec: str) -> Problem:
    problems = {problem.name: problem for problem in load_suite(BUILTIN)}
    if spec in problems:
        return problems[spec]
    short = {name: re.sub(r"^\d+_", "", name.rpartition("/")[2]) for name in problems}
    exact = [name for name in problems if spec in (short[name], name.rpartition("/")[2])]
    found = exact or [name for name in problems if spec in name]
    if len(found) == 1:
        return problems[found[0]]
    if found:
        raise ProblemError(
            f"{spec}: {len(found)} built-in problems have that in their name: {', '.join(found[:8])}. Name one."
        )
    close = difflib.get_close_matches(spec, [*short.values(), *problems], 3)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    raise ProblemError(
        f"{spec}: there is no such file and no such built-in problem.{hint} List them with: cuda-agent problems list"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    except OSError as error:
        raise ProblemError(f"{path}: can't be read: {error.strerror}.") from error


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order 2_x before 10_x."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _nearby(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return ""
    close = difflib.get_close_matches(path.name, [p.name for p in folder.iterdir()], 3)
    return f" Did you mean {', '.join(str(folder / name) for name in close)}?" if close else ""
