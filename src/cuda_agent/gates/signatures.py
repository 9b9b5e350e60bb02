"""Finds the launchers of a candidate: `extern "C"` functions whose last parameter is a `cudaStream_t`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from cuda_agent.errors import SignatureError
from cuda_agent.records.candidate import Candidate, Launcher, Parameter

SCALARS = {
    "bool": "bool",
    "char": "signed char",
    "signed char": "signed char",
    "int8_t": "signed char",
    "unsigned char": "unsigned char",
    "uint8_t": "unsigned char",
    "short": "short",
    "short int": "short",
    "int16_t": "short",
    "unsigned short": "unsigned short",
    "unsigned short int": "unsigned short",
    "uint16_t": "unsigned short",
    "int": "int",
    "signed": "int",
    "signed int": "int",
    "int32_t": "int",
    "unsigned": "unsigned int",
    "unsigned int": "unsigned int",
    "uint32_t": "unsigned int",
    "uint": "unsigned int",
    "long": "long long",
    "long int": "long long",
    "long long": "long long",
    "long long int": "long long",
    "int64_t": "long long",
    "ptrdiff_t": "long long",
    "ssize_t": "long long",
    "intptr_t": "long long",
    "unsigned long": "unsigned long long",
    "unsigned long int": "unsigned long long",
    "unsigned long long": "unsigned long long",
    "unsigned long long int": "unsigned long long",
    "uint64_t": "unsigned long long",
    "size_t": "unsigned long long",
    "uintptr_t": "unsigned long long",
    "float": "float",
    "double": "double",
}
"""C scalar types, as written to canonical (64-bit Linux: long has 64 bits)."""

POINTEES = {
    **{name: name for name in set(SCALARS.values())},
    "void": "void",
    "half": "__half",
    "__half": "__half",
    "nv_bfloat16": "__nv_bfloat16",
    "__nv_bfloat16": "__nv_bfloat16",
    "half2": "__half2",
    "__half2": "__half2",
    "nv_bfloat162": "__nv_bfloat162",
    "__nv_bfloat162": "__nv_bfloat162",
    "__nv_fp8_e4m3": "__nv_fp8_e4m3",
    "__nv_fp8_e5m2": "__nv_fp8_e5m2",
    **{name: name for name in ("float2", "float4", "double2", "int2", "int4", "uint2", "uint4")},
    "cuComplex": "cuFloatComplex",
    "cuFloatComplex": "cuFloatComplex",
    "cuDoubleComplex": "cuDoubleComplex",
}
"""What a pointer parameter may point to, as written to canonical."""

_OUTER = ("translation_unit", "namespace_definition", "declaration_list", "ERROR")
_LANGUAGE = Language(tree_sitter_cuda.language())


def find_launchers(candidate: Candidate) -> tuple[Launcher, ...]:
    """Return the launchers of `kernels/*.cu`, in the order of files and lines.

    Raises:
        SignatureError: a launcher has a parameter of an unknown type, or two have one name.
    """
    launchers: dict[str, Launcher] = {}
    defined: set[str] = set()
    for name, text in candidate.files.items():
        if not name.endswith(".cu"):
            continue
        aliases = _aliases(text)
        for function, is_definition in _extern_c_functions(text):
            launcher = _launcher(function, name, aliases)
            if launcher is None:
                continue
            known = launchers.get(launcher.name)
            if known is None:
                launchers[launcher.name] = launcher
            elif is_definition and launcher.name in defined:
                raise SignatureError(
                    f"Two launchers are named {launcher.name}: {known.file}:{known.line} and "
                    f"{launcher.file}:{launcher.line}. Each is imported by its name, so rename one."
                )
            if is_definition:
                launchers[launcher.name] = launcher
                defined.add(launcher.name)
    return tuple(launchers.values())


def extern_c_names(candidate: Candidate) -> dict[str, str]:
    """Return every `extern "C"` function of `kernels/*.cu` with `file:line`, launcher or not."""
    names = {}
    for name, text in candidate.files.items():
        if name.endswith(".cu"):
            for function, _ in _extern_c_functions(text):
                declarator = _declarator(function)
                if declarator is not None:
                    names[_text(declarator.child_by_field_name("declarator"))] = f"{name}:{function.start_point[0] + 1}"
    return names


def _extern_c_functions(text: str) -> Iterator[tuple[Node, bool]]:
    """Yield each `extern "C"` function's node and whether it is a definition."""
    tree = Parser(_LANGUAGE).parse(text.encode())
    waiting = [tree.root_node]
    while waiting:
        node = waiting.pop(0)
        if node.type == "linkage_specification" and '"C"' in _text(node.child_by_field_name("value")):
            body = node.child_by_field_name("body")
            inner = body.named_children if body is not None and body.type == "declaration_list" else [body]
            for item in inner:
                if item is not None and item.type in ("function_definition", "declaration"):
                    yield item, item.type == "function_definition"
        elif node.type in (
            "translation_unit",
            "namespace_definition",
            "declaration_list",
            "ERROR",
        ) or node.type.startswith("preproc_"):
            waiting = [*node.named_children, *waiting]


def _text(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


def _declarator(function: Node) -> Node | None:
    """Return the function declarator inside pointers and references of the return type."""
    node = function.child_by_field_name("declarator")
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator")
    return node


def _launcher(function: Node, file: str, aliases: dict[str, str]) -> Launcher | None:
    declarator = _declarator(function)
    if declarator is None or "__global__" in _text(function).partition("(")[0]:
        return None
    name = _text(declarator.child_by_field_name("declarator"))
    line = function.start_point[0] + 1
    listed = declarator.child_by_field_name("parameters")
    texts = [_text(node) for node in listed.named_children if node.type.endswith("declaration")] if listed else []
    if not texts or _split(texts[-1], aliases)[0] not in ("cudaStream_t", "CUstream", "CUstream_st*"):
        return None
    returns = _text(function.child_by_field_name("type"))
    if returns not in ("void", "int", "cudaError_t") or _returns_pointer(function):
        raise SignatureError(
            f"{file}:{line}: launcher {name} returns {returns or 'an unknown type'}; it must return void, int (0 for "
            "success) or cudaError_t."
        )
    parameters = tuple(_parameter(text, name, f"{file}:{line}", aliases, n) for n, text in enumerate(texts[:-1], 1))
    return Launcher(name=name, returns=returns, parameters=parameters, file=file, line=line)  # type: ignore[arg-type]


def _returns_pointer(function: Node) -> bool:
    declarator = function.child_by_field_name("declarator")
    return declarator is not None and declarator.type != "function_declarator"


def _parameter(text: str, launcher: str, place: str, aliases: dict[str, str], number: int) -> Parameter:
    ctype, name, const = _split(text, aliases)
    shown = name or f"argument{number}"
    if ctype.endswith("*"):
        pointee = ctype[:-1]
        canonical = POINTEES.get(SCALARS.get(pointee, pointee))
        if canonical is not None:
            return Parameter(name=shown, ctype=f"{canonical}*", const=const)
    elif ctype in SCALARS:
        return Parameter(name=shown, ctype=SCALARS[ctype], const=const)
    raise SignatureError(
        f"{place}: launcher {launcher} has a parameter `{' '.join(text.split())}`, whose type can't be passed from "
        f"Python. Pointers to {', '.join(sorted(set(POINTEES.values())))} and the scalars "
        f"{', '.join(sorted(set(SCALARS.values())))} can."
    )


def _split(text: str, aliases: dict[str, str]) -> tuple[str, str, bool]:
    """Return a parameter's type without const, its name, and whether a pointee is const."""
    text = text.split("=")[0].strip()
    arrays = text.count("[")
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(__restrict__|__restrict|restrict|volatile|register|struct)\b", " ", text).replace("std::", "")
    stars = text.count("*") + arrays
    before, _, _ = text.partition("*")
    const = bool(re.search(r"\bconst\b", before)) and stars > 0
    words = re.sub(r"\bconst\b", " ", text).replace("*", " * ").replace("&", " & ").split()
    names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*(::\w+)*", word)]
    base = " ".join(names)
    name = ""
    if len(names) > 1 and not _is_type(base, aliases):
        name = names[-1]
        base = " ".join(names[:-1])
    base = aliases.get(base, base)
    if base.endswith("*"):
        stars += base.count("*")
        const = const or "const " in base
        base = base.replace("const ", "").rstrip("* ").strip()
    return base + "*" * stars + ("&" if "&" in text else ""), name, const


def _is_type(text: str, aliases: dict[str, str]) -> bool:
    return text in SCALARS or text in POINTEES or text in aliases


def _aliases(text: str) -> dict[str, str]:
    """Return the simple typedefs and using declarations of a file, resolved to what they stand for."""
    found = {}
    for match in re.finditer(r"\btypedef\s+([\w:\s]+?)\s*(\*?)\s*(\w+)\s*;", text):
        found[match[3]] = " ".join(match[1].replace("std::", "").split()) + match[2]
    for match in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w:\s]+?)\s*(\*?)\s*;", text):
        found[match[1]] = " ".join(match[2].replace("std::", "").split()) + match[3]
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w: \t]+?)[ \t]*(\*?)[ \t]*$", text, re.M):
        target = " ".join(match[2].replace("std::", "").split())
        if target in SCALARS or target in POINTEES:
            found[match[1]] = target + match[3]
    for name in list(found):
        for _ in range(8):
            if found[name] in found and found[name] != name:
                found[name] = found[found[name]]
    return found
