"""The source gate: parses a candidate and refuses what can't be judged; a hint, never the only defence."""

from __future__ import annotations

import ast
import difflib
import posixpath
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from cuda_agent.errors import SignatureError
from cuda_agent.gates.signatures import Kernels, read_kernels
from cuda_agent.gates.workspace import MODEL_FILE
from cuda_agent.records.candidate import Candidate
from cuda_agent.records.verdict import SourceRejected

EXTENSION_MODULE = "cuda_extension"
EXTENSION_NAMES = ("strided", "Strided")

_GENERATOR = "it generates kernels itself, and the CUDA track judges the CUDA C++ under kernels/"
_PROCESS = "a candidate starts no processes and uses no network"

REFUSED_IMPORTS = {
    "triton": _GENERATOR,
    "numba": _GENERATOR,
    "cupy": _GENERATOR,
    "jax": _GENERATOR,
    "tilelang": _GENERATOR,
    "pycuda": _GENERATOR,
    "torch._inductor": _GENERATOR,
    "torch._dynamo": _GENERATOR,
    "torch.utils.cpp_extension": "kernels are built before the run: put CUDA in kernels/*.cu with extern "
    f'"C" launchers and import those from {EXTENSION_MODULE}',
    "subprocess": _PROCESS,
    "multiprocessing": _PROCESS,
    "socket": _PROCESS,
    "ctypes": f"it reaches around the interpreter; launchers are imported from {EXTENSION_MODULE}",
    "cffi": f"it reaches around the interpreter; launchers are imported from {EXTENSION_MODULE}",
}
"""Modules `model_new.py` may not import; short on purpose, since what ran decides, not the text."""

REFUSED_NAMES = {
    "torch.compile": "it generates kernels itself; the candidate is compared with it and may not call it",
    "torch.jit.script": _GENERATOR,
    "torch.jit.trace": _GENERATOR,
    "torch.cuda._compile_kernel": "kernels are built before the run: put CUDA in kernels/*.cu",
    "torch.utils.cpp_extension": REFUSED_IMPORTS["torch.utils.cpp_extension"],
    "os.system": _PROCESS,
    "os.popen": _PROCESS,
    "os.fork": _PROCESS,
}
"""Names `model_new.py` may not use, imported or by attribute."""

_TORCH_HEADERS = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h")


class _Use(NamedTuple):
    """One dotted name that `model_new.py` imports or uses."""

    name: str
    line: int
    imported: bool


class SourceGate:
    """Checks that `model_new.py` parses, defines ModelNew, and uses launchers that exist.

    Stops: broken Python, imports of other kernel generators, `torch.compile`, names no launcher has, launchers that
    can't be bound, torch headers in kernels, includes that leave the folder.
    Does not stop: ATen compute, or anything reached through `getattr`, `exec` or another module's re-export.
    """

    def check(self, candidate: Candidate) -> SourceRejected | None:
        """Return why the candidate is refused, None when it may be built."""
        tree = _parse(candidate.files[MODEL_FILE])
        if isinstance(tree, SourceRejected):
            return tree
        refused = _check_class(tree) or _check_names(tree) or _check_includes(candidate)
        if refused:
            return refused
        try:
            kernels = read_kernels(candidate)
        except SignatureError as error:
            return _refused("launcher signature", str(error))
        # A file that can't be parsed whole may hide a launcher; nvcc will name the line, which says more than we can.
        if kernels.syntax_errors and not kernels.launchers:
            return None
        return no_launcher(kernels) or _check_launcher_names(tree, kernels)


def no_launcher(kernels: Kernels) -> SourceRejected | None:
    """Return the rejection of a candidate without any launcher, None when it has one."""
    if kernels.launchers:
        return None
    hints = "".join(f" {name}: {why}." for name, why in list(kernels.others.items())[:3])
    return _refused(
        "launchers",
        'kernels/*.cu define no launcher. A launcher is an extern "C" function whose last parameter is a cudaStream_t, '
        f'such as extern "C" int scale_launcher(const float* x, float* y, int n, cudaStream_t stream).{hints}',
    )


def _parse(text: str) -> ast.Module | SourceRejected:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the candidate's invalid escapes are not this program's warnings
            return ast.parse(text)
    except SyntaxError as error:
        line = (error.text or "").strip()
        shown = f" in `{line[:120]}`" if line else ""
        return _refused("python syntax", f"{MODEL_FILE}:{error.lineno or 0}: {error.msg}{shown}. Fix the syntax.")
    except (ValueError, RecursionError, MemoryError) as error:
        return _refused("python syntax", f"{MODEL_FILE}: it can't be parsed: {error}.")


def _check_class(tree: ast.Module) -> SourceRejected | None:
    if "ModelNew" in _top_names(tree):
        return None
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    found = f"it defines {', '.join(classes[:5])}" if classes else "it defines no class"
    rename = " Rename Model to ModelNew." if "Model" in classes else ""
    return _refused(
        "ModelNew",
        f"{MODEL_FILE} must define a class ModelNew, a torch.nn.Module with the __init__ and forward arguments of the "
        f"problem's Model; {found}.{rename}",
    )


def _top_names(tree: ast.Module) -> set[str]:
    """Return the names bound at module level, also under `if` and `try`."""
    names: set[str] = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(t.id for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return names


def _check_names(tree: ast.Module) -> SourceRejected | None:
    for use in _uses(tree):
        for table, imports_only in ((REFUSED_IMPORTS, True), (REFUSED_NAMES, False)):
            for refused, why in table.items():
                if (use.imported or not imports_only) and (use.name == refused or use.name.startswith(f"{refused}.")):
                    verb = "imports" if use.imported else "uses"
                    return _refused(f"forbidden {verb[:-1]}", f"{MODEL_FILE}:{use.line}: {verb} {use.name}: {why}.")
    return None


def _uses(tree: ast.Module) -> Iterator[_Use]:
    """Yield every dotted name, with `import torch as t` seen through."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield _Use(alias.name, node.lineno, True)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield _Use(f"{node.module}.{alias.name}", node.lineno, True)
        elif isinstance(node, ast.Call):
            called = _dotted(node.func)
            first = node.args[0] if node.args else None
            if (
                called in ("__import__", "importlib.import_module", "import_module")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield _Use(first.value, node.lineno, True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := _dotted(node)):
            head, _, rest = name.partition(".")
            if head in aliases:
                yield _Use(f"{aliases[head]}.{rest}", node.lineno, False)


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of attributes on a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _check_includes(candidate: Candidate) -> SourceRejected | None:
    for name, text in candidate.files.items():
        if name == MODEL_FILE:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if match is None:
                continue
            header = match[1]
            if header.startswith(_TORCH_HEADERS):
                return _refused(
                    "torch headers",
                    f"{name}:{number}: includes {header}. Kernels are built without torch and Python headers: take raw "
                    "pointers, sizes and a cudaStream_t in an extern "
                    f'"C" launcher, allocate outputs in {MODEL_FILE}, and pass tensors there.',
                )
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), header))
            if header.startswith("/") or inside.startswith("../") or (".." in header and inside not in candidate.files):
                return _refused(
                    "include path",
                    f"{name}:{number}: includes {header}, which lies outside the candidate. Copy the header to kernels/.",
                )
    return None


def _check_launcher_names(tree: ast.Module, kernels: Kernels) -> SourceRejected | None:
    known = {launcher.name for launcher in kernels.launchers}
    used = list(_extension_uses(tree))
    for name, line in used:
        if name in known or name in EXTENSION_NAMES or name in ("", "*") or name.startswith("__"):
            continue
        if name in kernels.others:
            why = kernels.others[name]
        else:
            close = difflib.get_close_matches(name, known, 1)
            why = f"kernels/*.cu define {', '.join(sorted(known))}"
            why += f" (did you mean {close[0]}?)" if close else ""
        return _refused("launcher name", f"{MODEL_FILE}:{line}: uses {name} of {EXTENSION_MODULE}: {why}.")
    if not used and EXTENSION_MODULE not in _strings(tree):
        return _refused(
            "launcher use",
            f"{MODEL_FILE} never imports {EXTENSION_MODULE}, so none of the candidate's kernels can run. Import a "
            f"launcher, from {EXTENSION_MODULE} import {sorted(known)[0]}, and call it in ModelNew.forward.",
        )
    return None


def _extension_uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names taken from the extension, and an empty name for a plain import of it."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == EXTENSION_MODULE and node.level in (0, 1):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == EXTENSION_MODULE:
                    modules.add(alias.asname or alias.name)
                    yield "", node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.attr, node.lineno


def _strings(tree: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _refused(check: str, message: str) -> SourceRejected:
    return SourceRejected(gate="source", check=check, message=message)
