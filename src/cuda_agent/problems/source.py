"""A problem's text: what it must define, its title, and its identity."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re

from cuda_agent.errors import ProblemError
from cuda_agent.records.problem import Problem

REQUIRED = ("Model", "get_inputs")


def problem_of(source: str, *, name: str, origin: str, level: int | None = None) -> Problem:
    """Return the problem in `source` after checking, without running it, that it defines what it must.

    Raises:
        ProblemError: it is not Python, or lacks a name.
    """
    tree = _parsed(source, origin)
    defined = _defined(tree)
    for required in REQUIRED:
        if required not in defined:
            close = difflib.get_close_matches(required, defined, 1)
            hint = f" (it defines {close[0]})" if close else ""
            raise ProblemError(
                f"{origin}: a problem defines Model, get_inputs() and get_init_inputs(); {required} is missing{hint}. "
                "Add it, or check that this is the file you meant."
            )
    return Problem(id=identity(source), name=name, source=source, origin=origin, level=level)


def identity(source: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of the text without comments, layout and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _has_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def is_problem(source: str) -> bool:
    """Whether a text parses and defines what a problem defines."""
    try:
        return set(REQUIRED) <= _defined(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def resembles_problem(source: str) -> bool:
    """Whether a text is meant to be a problem: it defines one of the names that make one, or does not parse."""
    try:
        return bool(set(REQUIRED) & _defined(ast.parse(source)))
    except (SyntaxError, ValueError):
        return True


def title(source: str) -> str:
    """Return the first line of the file's docstring, empty when it has none."""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].strip()


def family(source: str) -> str:
    """Return what the docstring names after `Family:`, empty when it names none."""
    match = re.search(r"^\s*Family:\s*(.+?)\.?\s*$", ast.get_docstring(ast.parse(source)) or "", re.M)
    return match[1] if match else ""


def has_variants(source: str) -> bool:
    """Whether the file declares other shapes."""
    return bool({"get_input_variants", "get_cpu_input_variants"} & _defined(ast.parse(source)))


def _parsed(source: str, origin: str) -> ast.Module:
    if not source.strip():
        raise ProblemError(f"{origin}: the file is empty. A problem defines Model, get_inputs() and get_init_inputs().")
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else ""
        raise ProblemError(f"{origin}: not Python{place}: {getattr(error, 'msg', error)}. Fix the file.") from error


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(alias.asname or alias.name) for alias in node.names}
    return names


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
