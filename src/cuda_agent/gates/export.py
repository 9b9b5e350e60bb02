"""Writes a candidate as a package that plain PyTorch users import, with nothing of this project installed.

```text
__init__.py          from .model_new import ModelNew
model_new.py         the candidate's, importing its launchers from the package
cuda_extension.py    the launchers; builds them at first import
build.py             finds nvcc and builds (gates/exported_build.py as it is)
binding.cpp, binding_support.h, kernels/
evidence.json        where the candidate was judged
README.md
```
"""

from __future__ import annotations

import ast
import keyword
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

import msgspec

from cuda_agent.errors import CandidateError, UserError
from cuda_agent.gates import binding
from cuda_agent.gates.signatures import RESERVED_NAMES, find_launchers
from cuda_agent.gates.source import EXTENSION_MODULE, SourceGate
from cuda_agent.gates.workspace import MODEL_FILE, read_candidate
from cuda_agent.records import codec
from cuda_agent.records.candidate import Candidate, Launcher
from cuda_agent.records.evidence import Evidence
from cuda_agent.records.verdict import Passed
from cuda_agent.store.run_folder import RunFolder

OWN_PACKAGE = "cuda_agent"


def read_source(source: Path) -> tuple[Candidate, Evidence | None]:
    """Return the candidate in `source` (a candidate folder, or a run folder's best one) and its evidence.

    Evidence of other text than the candidate's is left out.

    Raises:
        UserError: there is no candidate there, or the run has none yet.
    """
    folder = source
    if (source / "run.json").is_file():
        folder = RunFolder.open(source).best
        if not folder.is_dir():
            raise UserError(
                f"{source}: this run has no best candidate yet. Continue it with `cuda-agent optimize --resume "
                f"{source}`, or export its {source / 'workspace'} as a candidate folder."
            )
    candidate = read_candidate(folder)
    return candidate, _evidence(folder / "evidence.json", candidate)


def export(candidate: Candidate, evidence: Evidence | None, destination: Path) -> None:
    """Write the package; `destination` comes into being whole or not at all.

    Raises:
        UserError: the destination exists, or its name can't be imported.
        CandidateError: the candidate is refused by the source gate, or can't live without this project.
    """
    check_destination(destination)
    refused = SourceGate().check(candidate)
    if refused is not None:
        raise CandidateError(f"{refused.check}: {refused.message}")
    launchers = find_launchers(candidate)
    texts = {
        **candidate.files,
        MODEL_FILE: relative_imports(candidate.files[MODEL_FILE]),
        "__init__.py": _package_text(evidence),
        f"{EXTENSION_MODULE}.py": _extension_text(launchers),
        "build.py": resources.files("cuda_agent.gates").joinpath("exported_build.py").read_text(encoding="utf-8"),
        "binding.cpp": binding.generate(launchers),
        "binding_support.h": binding.support_header(),
        "README.md": _readme(destination.name, launchers, evidence),
    }
    destination.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    try:
        for name, text in texts.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if evidence is not None:
            codec.write(fresh / "evidence.json", evidence)
            (fresh / "evidence.json").chmod(0o644)
        fresh.chmod(0o755)
        fresh.rename(destination)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def check_destination(destination: Path) -> None:
    """Raise `UserError` when no package can be made at `destination`."""
    name = destination.name
    if not name.isidentifier() or keyword.iskeyword(name):
        fixed = re.sub(r"\W", "_", name).lstrip("0123456789_") or "my_kernel"
        raise UserError(
            f"{destination}: a package called {name!r} can't be imported in Python. Call it {destination.parent / fixed}."
        )
    if name in ("torch", EXTENSION_MODULE):
        raise UserError(f"{destination}: a package called {name} would hide another module. Choose another name.")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UserError(f"{destination}: it already exists. Name a new folder, or remove this one first.")
    for parent in destination.parents:
        if parent.exists():
            if not parent.is_dir():
                raise UserError(f"{destination}: {parent} is a file, so no folder can be made in it.")
            return


def relative_imports(text: str) -> str:
    """Return `model_new.py` with imports of `cuda_extension` made relative; all else stays as written.

    Raises:
        CandidateError: it reaches for the module in a way that can't be made relative, or imports this project.
    """
    lines = text.splitlines(keepends=True)
    changes: list[tuple[ast.Import | ast.ImportFrom, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value == EXTENSION_MODULE:
            raise CandidateError(
                f"{MODEL_FILE}:{node.lineno}: it names {EXTENSION_MODULE!r} in a string, which does not work inside a "
                f"package. Write `from {EXTENSION_MODULE} import NAME`."
            )
        names = _imported(node)
        if any(name.partition(".")[0] == OWN_PACKAGE for name in names):
            raise CandidateError(
                f"{MODEL_FILE}:{node.lineno}: it imports {OWN_PACKAGE}, which users of the package don't have. "  # type: ignore[attr-defined]
                "Write what it needs into the candidate."
            )
        if EXTENSION_MODULE in names and isinstance(node, ast.Import | ast.ImportFrom):
            changes.append((node, _relative(node)))
    for node, written in sorted(changes, key=lambda change: -change[0].lineno):
        _replace(lines, node, written)
    return "".join(lines)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []


def _relative(node: ast.Import | ast.ImportFrom) -> str:
    if isinstance(node, ast.ImportFrom):
        names = ", ".join(
            alias.name if alias.asname is None else f"{alias.name} as {alias.asname}" for alias in node.names
        )
        return f"from .{EXTENSION_MODULE} import {names}"
    rest = [alias for alias in node.names if alias.name != EXTENSION_MODULE]
    own = [alias for alias in node.names if alias.name == EXTENSION_MODULE]
    parts = [ast.unparse(ast.Import(names=rest))] if rest else []
    parts.append(ast.unparse(ast.ImportFrom(module=None, names=own, level=1)))
    return "; ".join(parts)


def _replace(lines: list[str], node: ast.Import | ast.ImportFrom, written: str) -> None:
    """Put `written` where `node` stands; columns of the syntax tree count UTF-8 bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset :].decode()
    lines[first : last + 1] = [before + written + after]


def _evidence(path: Path, candidate: Candidate) -> Evidence | None:
    if not path.is_file():
        return None
    try:
        evidence = codec.read(path, Evidence)
    except msgspec.MsgspecError:
        return None  # of another version, or another tool's file: not this candidate's evidence
    return evidence if evidence.candidate.id == candidate.id else None


def _package_text(evidence: Evidence | None) -> str:
    what = f" for {evidence.problem.name}" if evidence is not None else ""
    return (
        f'"""CUDA kernels{what}: `ModelNew` stands in for the PyTorch module; see README.md."""\n\n'
        'from .model_new import ModelNew\n\n__all__ = ["ModelNew"]\n'
    )


def _extension_text(launchers: tuple[Launcher, ...]) -> str:
    names = (*sorted(launcher.name for launcher in launchers), *RESERVED_NAMES)
    # Each package keeps its launchers under its own name in sys.modules, so that several live in one process.
    return "\n".join(
        [
            '"""The launchers of kernels/*.cu, built when this is first imported."""',
            "",
            "from . import build",
            "",
            f'_native = build.load(f"{{__name__}}.{EXTENSION_MODULE}")',
            "",
            *(f"{name} = _native.{name}" for name in names),
            "",
            f"__all__ = {list(names)!r}".replace("'", '"'),
            "",
        ]
    )


def _readme(name: str, launchers: tuple[Launcher, ...], evidence: Evidence | None) -> str:
    signatures = "\n".join(binding.signature(launcher) for launcher in launchers)
    return f"""# {name}

CUDA kernels for a PyTorch module, exported by CUDA Agent. Nothing of CUDA Agent is needed to use them.

```python
from {name} import ModelNew

model = ModelNew(...).cuda()  # the arguments of the module it replaces
# model.load_state_dict(original.state_dict(), strict=False)
```

The kernels are built when the package is first imported, for the GPUs of that machine, into `built/`. To build before
that, or for other GPUs:

```sh
python {name}/build.py
python {name}/build.py --arch sm_90a --arch sm_80
```

Needed: PyTorch built for CUDA, Python's headers, g++, and nvcc (in `$CUDA_HOME`, on the `PATH`, or NVIDIA's wheels).

The launchers, as they are called from `model_new.py` (the stream is supplied):

```c
{signatures}
```
{_judged(evidence)}"""


def _judged(evidence: Evidence | None) -> str:
    """Return the section on how the candidate was judged; without evidence it says that it was not."""
    if evidence is None:
        return "\n## Judged\n\nNot judged: this package was exported without evidence.\n"
    lines = [
        "",
        "## Judged",
        "",
        f"Problem `{evidence.problem.name}`, on {evidence.device.model}, protocol `{evidence.protocol}`, "
        f"{evidence.created}: **{evidence.verdict.__struct_config__.tag}**. All of it is in `evidence.json`.",
        "",
    ]
    verdict = evidence.verdict
    if not isinstance(verdict, Passed):
        return "\n".join([*lines, verdict.message, ""])
    if verdict.timing is None:
        return "\n".join([*lines, "Its time was not measured.", ""])
    for speedup in verdict.timing.speedups:
        interval = speedup.device
        lines.append(
            f"- {interval.point:.3f}x as fast as {speedup.baseline} [{interval.low:.3f}, {interval.high:.3f}], "
            f"device time, {speedup.how}"
        )
    cases = evidence.description.gpu_cases if evidence.description and evidence.device.name != "emulated" else ()
    shapes = [
        f"- {case.name}: "
        + ", ".join(f"{v.dtype}{list(v.shape)}" if v.kind == "tensor" else v.text for v in case.inputs)
        for case in cases
    ]
    if shapes:
        lines += ["", "Inputs it was judged with:", "", *shapes]
    return "\n".join([*lines, ""])
