"""Reads C declarations of one parameter, return value or typedef, down to the types a binding knows.

`Declared` is what was written, aliases still in it; `resolve` follows the aliases of the file; `canonical` gives
the one spelling used in records, with sizes as on 64-bit Linux, where `long` has 64 bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

INTEGERS = {
    "signed char": (-(2**7), 2**7 - 1),
    "unsigned char": (0, 2**8 - 1),
    "short": (-(2**15), 2**15 - 1),
    "unsigned short": (0, 2**16 - 1),
    "int": (-(2**31), 2**31 - 1),
    "unsigned int": (0, 2**32 - 1),
    "long long": (-(2**63), 2**63 - 1),
    "unsigned long long": (0, 2**64 - 1),
}
"""Canonical integer types with their least and greatest value."""

SCALARS = (*INTEGERS, "bool", "float", "double", "__half", "__nv_bfloat16")
"""Types that are passed by value."""

_NAMED = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "uchar": "unsigned char",
    "byte": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "ushort": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "uint": "unsigned int",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
    "ulong": "unsigned long long",
    "size_t": "unsigned long long",
    "ssize_t": "long long",
    "ptrdiff_t": "long long",
    "intptr_t": "long long",
    "uintptr_t": "unsigned long long",
    "half": "__half",
    "__half": "__half",
    "half2": "__half2",
    "__half2": "__half2",
    "bfloat16": "__nv_bfloat16",
    "nv_bfloat16": "__nv_bfloat16",
    "__nv_bfloat16": "__nv_bfloat16",
    "nv_bfloat162": "__nv_bfloat162",
    "__nv_bfloat162": "__nv_bfloat162",
    "__nv_fp8_e4m3": "__nv_fp8_e4m3",
    "__nv_fp8_e5m2": "__nv_fp8_e5m2",
    "cuComplex": "cuFloatComplex",
    "complex<float>": "cuFloatComplex",
    "complex<double>": "cuDoubleComplex",
    "cudaError": "cudaError_t",
    "cudaError_t": "cudaError_t",
    "cudaStream_t": "cudaStream_t",
    "CUstream": "cudaStream_t",
    "CUstream_st*": "cudaStream_t",
}

_VECTORS = {
    f"{element}{lanes}": (base, lanes)
    for element, base in {
        "char": "signed char",
        "uchar": "unsigned char",
        "short": "short",
        "ushort": "unsigned short",
        "int": "int",
        "uint": "unsigned int",
        "longlong": "long long",
        "ulonglong": "unsigned long long",
        "float": "float",
        "double": "double",
    }.items()
    for lanes in (2, 3, 4)
}

ELEMENTS: dict[str, tuple[str, int]] = {
    **{name: (name, 1) for name in SCALARS},
    "__nv_fp8_e4m3": ("__nv_fp8_e4m3", 1),
    "__nv_fp8_e5m2": ("__nv_fp8_e5m2", 1),
    "__half2": ("__half", 2),
    "__nv_bfloat162": ("__nv_bfloat16", 2),
    "cuFloatComplex": ("cuFloatComplex", 1),
    "cuDoubleComplex": ("cuDoubleComplex", 1),
    **_VECTORS,
}
"""What a pointer may point to besides `void`: the scalar type behind it and how many of them make one element."""

_BUILTIN_WORDS = frozenset(["signed", "unsigned", "char", "short", "int", "long", "float", "double", "bool", "void"])
_DROPPED = re.compile(
    r"\b(?:__restrict__|__restrict|restrict|volatile|register|struct|class|enum|typename|__grid_constant__"
    r"|static|inline|__inline__|__forceinline__|__host__|constexpr|extern)\b"
)
_TOKEN = re.compile(r"[A-Za-z_]\w*(?:\s*<[^<>]*>)?|[*&\[\]()]|\S")


@dataclass(frozen=True)
class Declared:
    """One declaration such as `const float *__restrict__ x`."""

    base: str
    """`float`, `unsigned int`, `half_t`: without const, `std::` and `struct`."""
    stars: int
    """Levels of pointer; an array counts as one."""
    const: bool
    """Whether what the outermost pointer points to is const."""
    name: str
    """Empty when the declaration has none."""
    odd: str = ""
    """Why it can never be passed: `a reference`, `a function pointer`; else empty."""


def read_declaration(text: str) -> Declared:
    """Return what `text`, one parameter or typedef without its semicolon, declares."""
    text = text.split("=")[0]
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)|__align__\s*\(.*?\)|\[\[.*?\]\]", " ", text)
    text = _DROPPED.sub(" ", text)
    text = re.sub(r"(?:\b\w+\s*)?::\s*", " ", text)
    tokens = _TOKEN.findall(text)
    first = next((n for n, token in enumerate(tokens) if token in "*&[("), len(tokens))
    words = [re.sub(r"\s+", "", token) if "<" in token else token for token in tokens[:first]]
    const = "const" in words
    words = [word for word in words if word != "const"]
    rest = tokens[first:]
    base, left = _base(words)
    names = [*left, *(token for token in rest if re.fullmatch(r"[A-Za-z_]\w*", token) and token != "const")]
    odd = "a function pointer" if "(" in rest else "a reference" if "&" in rest else ""
    return Declared(
        base=base,
        stars=rest.count("*") + rest.count("["),
        const=const,
        name=names[-1] if names else "",
        odd=odd,
    )


def resolve(declared: Declared, aliases: Mapping[str, Declared]) -> Declared:
    """Return `declared` with its base type followed through `aliases`."""
    seen = set()
    while declared.base in aliases and declared.base not in seen:
        seen.add(declared.base)
        alias = aliases[declared.base]
        # In `const cfloat_ptr p` the const is the pointer's own and says nothing of what it points to.
        const = alias.const if alias.stars else declared.const or alias.const
        declared = replace(
            declared, base=alias.base, stars=declared.stars + alias.stars, const=const, odd=declared.odd or alias.odd
        )
    return declared


def canonical(declared: Declared) -> str | None:
    """Return the record's spelling, `float*`, `long long`, `cudaStream_t`; None for a type nobody knows here."""
    if declared.odd:
        return None
    base = _NAMED.get(declared.base + "*" * declared.stars)
    if base == "cudaStream_t":
        return base
    base = _NAMED.get(declared.base, declared.base)
    if declared.stars == 0:
        return base if base in SCALARS or base in ("void", "cudaError_t", "cudaStream_t") else None
    if declared.stars == 1 and (base in ELEMENTS or base == "void"):
        return f"{base}*"
    return None


def understood() -> str:
    """Return one sentence on what a launcher may take."""
    pointees = ["void", *(name for name in ELEMENTS if name not in _VECTORS)]
    return (
        f"A launcher takes pointers to {', '.join(pointees)} and the vector types such as float4, "
        f"and by value {', '.join(SCALARS)}, under any of their names (int64_t, size_t, half, ...) or a typedef of them"
    )


def _base(words: list[str]) -> tuple[str, list[str]]:
    """Split the words before any `*` into the type and what is left over, the parameter's name."""
    builtin = [word for word in words if word in _BUILTIN_WORDS]
    if not builtin:
        return (words[0] if words else ""), words[1:]
    left = [word for word in words if word not in _BUILTIN_WORDS]
    count = Counter(builtin)
    unsigned = "unsigned " if count["unsigned"] else ""
    if count["char"]:
        return ("unsigned char" if unsigned else "signed char"), left
    if count["short"]:
        return f"{unsigned}short", left
    if count["double"] or count["float"] or count["bool"] or count["void"]:
        kind = next(word for word in ("double", "float", "bool", "void") if count[word])
        return ("long double" if count["long"] else kind), left
    if count["long"]:
        return f"{unsigned}long long", left
    return f"{unsigned}int", left
