"""The source gate: parses a candidate and refuses what can't be judged; a hint, never the only defence."""

from __future__ import annotations

import ast
import difflib

from cuda_agent.errors import SignatureError
from cuda_agent.gates.signatures import extern_c_names, find_launchers
from cuda_agent.gates.workspace import MODEL_FILE
from cuda_agent.records.candidate import Candidate
from cuda_agent.records.verdict import SourceRejected

EXTENSION_MODULE = "cuda_extension"

REFUSED_IMPORTS = {
    "triton": "the CUDA track is for CUDA C++; Triton kernels are not judged",
    "numba": "the CUDA track is for CUDA C++",
    "cupy": "the CUDA track is for CUDA C++",
    "torch.utils.cpp_extension": "kernels are built beforehand: put CUDA in kernels/*.cu and import from cuda_extension",
    "subprocess": "a candidate starts no processes",
    "ctypes": "launchers are imported from cuda_extension",
    "socket": "a candidate has no network",
    "multiprocessing": "a candidate starts no processes",
}
"""Modules model_new.py may not import, with the reason; short on purpose, since what ran decides, not the text."""

REFUSED_CALLS = {"torch.compile": "the CUDA track compares with torch.compile; a candidate may not call it"}


class SourceGate:
    """Checks that `model_new.py` parses, defines ModelNew, and imports launchers that exist.

    Stops: broken Python, imports of other kernel languages, `torch.compile`, names that no launcher has.
    Does not stop: ATen compute, or anything reached through `getattr`, `exec` or another module's re-export.
    """

    def check(self, candidate: Candidate) -> SourceRejected | None:
        """Return why the candidate is refused, None when it may be built."""
        text = candidate.files[MODEL_FILE]
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", 0) or 0
            return _refused("python syntax", f"{MODEL_FILE}:{line}: {getattr(error, 'msg', error)}. Fix the syntax.")
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        if "ModelNew" not in classes and not _assigns(tree, "ModelNew"):
            found = f"it defines {', '.join(classes)}" if classes else "it defines no class"
            return _refused(
                "ModelNew", f"{MODEL_FILE} must define a class ModelNew with the reference's interface; {found}."
            )
        for node in ast.walk(tree):
            refusal = _import_refusal(node) or _call_refusal(node)
            if refusal:
                return _refused("forbidden import" if _import_refusal(node) else "forbidden call", refusal)
        try:
            launchers = {launcher.name for launcher in find_launchers(candidate)}
        except SignatureError as error:
            return _refused("launcher signature", str(error))
        if not launchers:
            others = extern_c_names(candidate)
            hint = (
                f" {next(iter(others))} at {next(iter(others.values()))} has no cudaStream_t as its last parameter."
                if others
                else ""
            )
            return _refused(
                "launchers",
                'kernels/*.cu define no launcher: an extern "C" function whose last parameter is a cudaStream_t, such '
                f'as extern "C" int scale_launcher(const float* x, float* y, int n, cudaStream_t stream).{hint}',
            )
        return _check_imports(tree, launchers, candidate)


def _check_imports(tree: ast.Module, launchers: set[str], candidate: Candidate) -> SourceRejected | None:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ImportFrom) and node.module == EXTENSION_MODULE):
            continue
        for alias in node.names:
            if alias.name in launchers or alias.name in ("strided", "*"):
                continue
            others = extern_c_names(candidate)
            if alias.name in others:
                why = f"{others[alias.name]} defines it, but its last parameter is not a cudaStream_t"
            else:
                close = difflib.get_close_matches(alias.name, launchers, 1)
                why = f"kernels/*.cu define {', '.join(sorted(launchers))}"
                why += f" (did you mean {close[0]}?)" if close else ""
            return _refused(
                "launcher name", f"{MODEL_FILE}:{node.lineno}: imports {alias.name} from {EXTENSION_MODULE}: {why}."
            )
    return None


def _assigns(tree: ast.Module, name: str) -> bool:
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def _import_refusal(node: ast.AST) -> str:
    modules = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for module in modules:
        for refused, why in REFUSED_IMPORTS.items():
            if module == refused or module.startswith(refused + "."):
                return f"{MODEL_FILE}:{getattr(node, 'lineno', 0)}: imports {module}: {why}."
    return ""


def _call_refusal(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node)
        if name in REFUSED_CALLS:
            return f"{MODEL_FILE}:{node.lineno}: uses {name}: {REFUSED_CALLS[name]}."
    return ""


def _refused(check: str, message: str) -> SourceRejected:
    return SourceRejected(gate="source", check=check, message=message)
