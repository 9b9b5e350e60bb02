"""Finds the launchers of a candidate: `extern "C"` functions of `kernels/*.cu` whose last parameter is a `cudaStream_t`.

Each `.cu` file goes through the host compiler's preprocessor without system headers, so that macros, conditions and
the candidate's own headers count as the compiler will count them, and tree-sitter parses what comes out. Where the
preprocessor is missing or refuses, the text is parsed as it stands.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from cuda_agent.errors import SignatureError
from cuda_agent.gates.c_types import Declared, canonical, read_declaration, resolve, understood
from cuda_agent.records.candidate import Candidate, Launcher, Parameter

RESERVED_NAMES = ("strided", "Strided")
"""Names that the generated module uses itself."""

_RETURNS = ("void", "int", "cudaError_t")
_PREPROCESS_LIMIT_S = 10
# What nvcc would define, so that conditions on the compiler's version take the branch it will take; the headers that
# define the rest are not read.
_DEFINES = (
    "-D__CUDACC__",
    "-D__NVCC__",
    "-D__CUDACC_VER_MAJOR__=13",
    "-D__CUDACC_VER_MINOR__=0",
    "-DCUDART_VERSION=13000",
    "-DCUDA_VERSION=13000",
)
_INCLUDE = re.compile(r"^([ \t]*#[ \t]*include)\b[ \t]*(.*)$", re.M)
_LINE_MARKER = re.compile(r'^#(?:line)? (\d+) "([^"]*)"')
_AT_NAMESPACE_SCOPE = ("function_definition", "declaration", "type_definition", "alias_declaration", "enum_specifier")
_LANGUAGE = Language(tree_sitter_cuda.language())


@dataclass(frozen=True)
class Kernels:
    """What was found in a candidate's kernel files."""

    launchers: tuple[Launcher, ...]
    """In the order of files and lines."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Functions that are no launchers, by name, with the reason and the place."""
    syntax_errors: bool = False
    """Whether a file could not be parsed whole, so that something may have been missed; nvcc will say where."""


def find_launchers(candidate: Candidate) -> tuple[Launcher, ...]:
    """Return the launchers of `kernels/*.cu`.

    Raises:
        SignatureError: a launcher has a parameter or a return type that can't be passed, or two have one name.
    """
    return read_kernels(candidate).launchers


def read_kernels(candidate: Candidate) -> Kernels:
    """Return the launchers and, for messages, what is no launcher; raises as `find_launchers` does."""
    return _read(tuple(sorted((n, t) for n, t in candidate.files.items() if n.startswith("kernels/"))))


@dataclass(frozen=True)
class _Function:
    """One function at namespace scope, as parsed."""

    name: str
    file: str
    line: int
    linkage_c: bool
    defined: bool
    kernel: bool
    returns: Declared
    parameters: tuple[str, ...]
    aliases: Mapping[str, Declared]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def takes_stream(self) -> bool:
        return bool(self.parameters) and self._type(self.parameters[-1]) == "cudaStream_t"

    @property
    def overload(self) -> tuple[str | None, ...]:
        """What tells C++ overloads apart: the name and the types of the parameters."""
        return (self.name, *(self._type(text) for text in self.parameters))

    def _type(self, text: str) -> str | None:
        return canonical(resolve(read_declaration(text), self.aliases))


@lru_cache(maxsize=16)
def _read(files: tuple[tuple[str, str], ...]) -> Kernels:
    functions: list[_Function] = []
    syntax_errors = False
    for unit in (name for name, _ in files if name.endswith(".cu")):
        text, preprocessed = _preprocess(dict(files), unit)
        root = Parser(_LANGUAGE).parse(text.encode()).root_node
        syntax_errors = syntax_errors or root.has_error
        functions += _functions(root, _Places(text, unit, preprocessed))
    return _sort_out(functions, syntax_errors)


def _sort_out(functions: list[_Function], syntax_errors: bool) -> Kernels:
    launchers: dict[str, _Function] = {}
    others: dict[str, str] = {}
    # C linkage given by one declaration holds for every later one, so a header may declare what a .cu file defines.
    declared_c = {f.overload for f in functions if f.linkage_c and not f.kernel}
    for function in functions:
        if function.kernel or not function.takes_stream:
            others.setdefault(function.name, _why_not(function))
        elif function.overload not in declared_c:
            others.setdefault(
                function.name, f'{function.place} defines it without extern "C"; write extern "C" in front of it'
            )
        elif known := launchers.get(function.name):
            if function.defined and known.defined and function.place != known.place:
                raise SignatureError(
                    f"Two launchers are named {function.name}: {known.place} and {function.place}. Each is imported "
                    "by its name, so rename one."
                )
            if function.defined and not known.defined:
                launchers[function.name] = function
        else:
            launchers[function.name] = function
    for name, function in list(launchers.items()):
        # A file that can't be parsed whole may hide the definition; the linker will know.
        if not function.defined and not syntax_errors:
            others[name] = f"{function.place} declares it, and no file under kernels/ defines it"
            del launchers[name]
    bound = tuple(_launcher(function) for function in launchers.values())
    return Kernels(bound, {n: why for n, why in others.items() if n not in launchers}, syntax_errors)


def _why_not(function: _Function) -> str:
    if function.kernel:
        return f"{function.place} defines it as a __global__ kernel; Python calls a host function that launches it"
    last = function.parameters[-1].strip() if function.parameters else ""
    found = f"its last parameter is `{' '.join(last.split())}`" if last else "it takes no parameter"
    return f"{function.place} defines it, and {found}; the last parameter of a launcher is a cudaStream_t"


def _launcher(function: _Function) -> Launcher:
    if function.name in RESERVED_NAMES:
        raise SignatureError(
            f"{function.place}: a launcher is named {function.name}, a name of cuda_extension itself. Rename it."
        )
    returns = canonical(resolve(function.returns, function.aliases))
    if returns not in _RETURNS:
        shown = (function.returns.base + " " + "*" * function.returns.stars).strip() or "nothing"
        raise SignatureError(
            f"{function.place}: launcher {function.name} returns {shown}; it must return void, int (0 for success) or "
            "cudaError_t. Results go to output tensors passed as pointers."
        )
    parameters = tuple(_parameter(function, n, text) for n, text in enumerate(function.parameters[:-1], 1))
    return Launcher(
        name=function.name,
        returns=cast(Literal["void", "int", "cudaError_t"], returns),
        parameters=parameters,
        file=function.file,
        line=function.line,
    )


def _parameter(function: _Function, number: int, text: str) -> Parameter:
    declared = read_declaration(text)
    resolved = resolve(declared, function.aliases)
    ctype = canonical(resolved)
    written = " ".join(text.split())
    if ctype is None or ctype in ("void", "cudaError_t", "cudaStream_t"):
        raise SignatureError(
            f"{function.place}: launcher {function.name}, parameter {number} `{written}`: "
            f"{_objection(resolved, ctype)}. {understood()}."
        )
    return Parameter(
        name=declared.name or f"argument{number}", ctype=ctype, const=resolved.const and ctype.endswith("*")
    )


def _objection(resolved: Declared, ctype: str | None) -> str:
    if ctype == "cudaStream_t":
        return "there is one stream, the last parameter"
    if resolved.odd == "a reference":
        return "a reference can't be passed from Python; take it by value or as a pointer"
    if resolved.odd:
        return f"{resolved.odd} can't be passed from Python"
    if resolved.stars > 1:
        return "a pointer to pointers can't be passed from Python; take one pointer a tensor"
    return f"the type {resolved.base or '?'}{'*' * resolved.stars} is not one that Python can pass"


class _Places:
    """Maps a line of the preprocessed text back to the author's file and line."""

    def __init__(self, text: str, unit: str, preprocessed: bool) -> None:
        self._rows: list[int] = [0]
        self._origins: list[tuple[str, int]] = [(unit, 1)]
        if not preprocessed:
            return
        for row, line in enumerate(text.split("\n")):
            if match := _LINE_MARKER.match(line):
                self._rows.append(row + 1)
                self._origins.append((posixpath.normpath(match[2]), int(match[1])))

    def find(self, node: Node) -> tuple[str, int]:
        row = node.start_point[0]
        at = bisect_right(self._rows, row) - 1
        file, line = self._origins[at]
        return file, line + row - self._rows[at]


def _preprocess(files: Mapping[str, str], unit: str) -> tuple[str, bool]:
    """Return the preprocessed text of `unit` with line markers, or its plain text where that can't be had."""
    compiler = shutil.which("g++")
    if compiler is None:
        return files[unit], False
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_without_foreign_includes(text, name, files), encoding="utf-8")
        command = [compiler, "-E", "-x", "c++", "-w", "-nostdinc", *_DEFINES, "-I", "kernels", unit]
        try:
            ran = subprocess.run(
                command,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": folder},
                capture_output=True,
                timeout=_PREPROCESS_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return files[unit], False
    if ran.returncode != 0:
        return files[unit], False
    return ran.stdout.decode(errors="replace"), True


def _without_foreign_includes(text: str, name: str, files: Mapping[str, str]) -> str:
    """Blank the includes of headers that are not the candidate's; system headers declare no launcher."""

    def keep_own(match: re.Match[str]) -> str:
        target = re.match(r'[<"]([^>"]+)[>"]', match[2])
        if target:
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target[1]))
            if beside in files or posixpath.normpath(f"kernels/{target[1]}") in files:
                return match[0]
        return ""

    return _INCLUDE.sub(keep_own, text)


def _functions(root: Node, places: _Places) -> Iterator[_Function]:
    aliases: dict[str, Declared] = {}
    for node, linkage_c in _outer(root, False):
        if node.type in ("type_definition", "alias_declaration", "enum_specifier"):
            _learn(node, aliases)
            continue
        declarator = _function_declarator(node)
        if declarator is None:
            continue
        name = _text(declarator.child_by_field_name("declarator"))
        listed = declarator.child_by_field_name("parameters")
        if listed is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
            continue
        file, line = places.find(declarator)
        head = _text(node).partition(name)[0]
        kernel = "__global__" in head or ("__device__" in head and "__host__" not in head)
        parameters = [_text(p) for p in listed.named_children if p.type.endswith("parameter_declaration")]
        yield _Function(
            name=name,
            file=file,
            line=line,
            linkage_c=linkage_c,
            defined=node.type == "function_definition",
            kernel=kernel,
            returns=_return_type(node),
            parameters=tuple(p for p in parameters if p.strip() != "void"),
            aliases=aliases,
        )


def _outer(node: Node, linkage_c: bool) -> Iterator[tuple[Node, bool]]:
    """Yield what stands at namespace scope below `node`, with whether it is inside `extern "C"`."""
    for child in node.named_children:
        if child.type == "linkage_specification":
            inside = '"C"' in _text(child.child_by_field_name("value"))
            body = child.child_by_field_name("body")
            if body is not None and body.type == "declaration_list":
                yield from _outer(body, inside)
            elif body is not None:
                yield body, inside
        elif child.type in _AT_NAMESPACE_SCOPE:
            yield child, linkage_c
        elif child.type in ("namespace_definition", "declaration_list", "ERROR") or child.type.startswith("preproc_if"):
            yield from _outer(child, linkage_c)


def _learn(node: Node, aliases: dict[str, Declared]) -> None:
    if node.type == "enum_specifier":
        name = _text(node.child_by_field_name("name"))
        declared = read_declaration(_text(node.child_by_field_name("base")) or "int")
    elif node.type == "alias_declaration":
        name = _text(node.child_by_field_name("name"))
        declared = read_declaration(_text(node.child_by_field_name("type")))
    else:
        text = re.sub(r"^\s*typedef\b", "", _text(node).rstrip().rstrip(";"))
        text = re.sub(r"^\s*enum\b[^{]*\{.*\}", "int ", text, flags=re.S)
        if "{" in text:
            return
        declared = read_declaration(text)
        name = declared.name
    if name and name != declared.base:
        aliases[name] = declared


def _function_declarator(node: Node) -> Node | None:
    """Return the function declarator inside pointers and references of the return type."""
    found = node.child_by_field_name("declarator")
    while found is not None and found.type in ("pointer_declarator", "reference_declarator"):
        found = found.child_by_field_name("declarator") or next(
            (child for child in found.named_children if child.type.endswith("declarator")), None
        )
    return found if found is not None and found.type == "function_declarator" else None


def _return_type(node: Node) -> Declared:
    declared = read_declaration(_text(node.child_by_field_name("type")))
    declarator = node.child_by_field_name("declarator")
    stars = 0
    while declarator is not None and declarator.type == "pointer_declarator":
        stars += 1
        declarator = declarator.child_by_field_name("declarator")
    return Declared(base=declared.base, stars=declared.stars + stars, const=False, name="")


def _text(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""
