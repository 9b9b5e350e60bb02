"""Writes the C++ that makes a candidate's launchers importable from Python as `cuda_extension`.

One file a candidate, against Python's C API only: no torch headers, so it compiles in a fraction of a second and
needs no particular torch. Every launcher becomes a function that checks its arguments, supplies the current stream,
calls, and raises when the launcher or a launch failed. The GIL is held: launchers enqueue and return.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from cuda_agent.gates.c_types import ELEMENTS
from cuda_agent.records.candidate import Launcher, Parameter

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "bool": "bool",
    "cuFloatComplex": "complex64",
    "cuDoubleComplex": "complex128",
}
"""torch dtype of the elements behind a pointer, by their C type."""

_NARROW = {"__half": "narrow(wide, 10, 15)", "__nv_bfloat16": "narrow(wide, 7, 127)"}
"""How a number becomes one of 16 bits: bits of the fraction, bias of the exponent."""

_INTEGER_RANGE = {
    "signed char": ("-128LL", "127LL"),
    "unsigned char": ("0LL", "255LL"),
    "short": ("-32768LL", "32767LL"),
    "unsigned short": ("0LL", "65535LL"),
    "int": ("-2147483648LL", "2147483647LL"),
    "unsigned int": ("0LL", "4294967295LL"),
    "long long": ("INT64_MIN", "INT64_MAX"),
}


def generator_version() -> str:
    """Return a hash of everything that decides what `generate` writes."""
    here = resources.files("cuda_agent.gates")
    texts = [here.joinpath(name).read_bytes() for name in ("binding.py", "c_types.py", "binding_support.h")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def support_header() -> str:
    """Return the text of `binding_support.h`, which the generated file includes."""
    return resources.files("cuda_agent.gates").joinpath("binding_support.h").read_text(encoding="utf-8")


def signature(launcher: Launcher) -> str:
    """Return the launcher as a C programmer reads it, without the stream."""
    parts = [f"{'const ' if p.const else ''}{p.ctype} {p.name}" for p in launcher.parameters]
    return f"{launcher.name}({', '.join(parts)})"


def generate(launchers: tuple[Launcher, ...]) -> str:
    """Return the C++ text of the module `cuda_extension` for these launchers."""
    dtypes = sorted({name for q in launchers for p in q.parameters if (name := _dtype(p.ctype))})
    parts = [
        "// Written by CUDA Agent: makes the launchers of kernels/*.cu importable from `cuda_extension`.",
        '#include "binding_support.h"',
        "",
        *(_declaration(launcher) for launcher in launchers),
        "",
        *(f"static PyObject *dtype_{name};" for name in dtypes),
        "",
        *(_wrapper(launcher) for launcher in launchers),
        "static PyMethodDef methods[] = {",
        *(_method(launcher) for launcher in launchers),
        "    STRIDED_METHOD,",
        "    {nullptr, nullptr, 0, nullptr},",
        "};",
        "",
        "static bool load_dtypes(PyObject *torch) {",
        "    (void)torch;",
        *(f'    if (!(dtype_{name} = PyObject_GetAttrString(torch, "{name}"))) return false;' for name in dtypes),
        "    return true;",
        "}",
        "",
        "BINDING_MODULE(methods, load_dtypes)",
        "",
    ]
    return "\n".join(parts)


def _dtype(ctype: str) -> str | None:
    """Return the torch dtype a pointer takes, None for `void*`, which takes any, and for what is no pointer."""
    pointee = ctype.removesuffix("*")
    return _DTYPES[ELEMENTS[pointee][0]] if ctype != pointee and pointee != "void" else None


def _c_type(parameter: Parameter) -> str:
    """Return the type the binding declares; the linker does not mind what is pointed to or what 16 bits mean."""
    if parameter.ctype.endswith("*"):
        return "void *"
    return "Bits16" if parameter.ctype in _NARROW else parameter.ctype


def _declaration(launcher: Launcher) -> str:
    returns = "int" if launcher.returns == "cudaError_t" else launcher.returns
    types = [_c_type(p) for p in launcher.parameters]
    return f'extern "C" {returns} {launcher.name}({", ".join([*types, "void *"])});'


def _wrapper(launcher: Launcher) -> str:
    count = len(launcher.parameters)
    lines = [
        f"static PyObject *call_{launcher.name}(PyObject *, PyObject *const *arguments, Py_ssize_t count) {{",
        f'    static const char *const signature = "{signature(launcher)}";',
        f'    Call call("{launcher.name}", signature);',
        f"    if (count != {count}) return call.wrong_count(count, {count});",
    ]
    names = []
    for index, parameter in enumerate(launcher.parameters):
        name = f"value{index}"
        names.append(name)
        lines += _conversion(parameter, index, name)
    if not any(p.ctype.endswith("*") for p in launcher.parameters):
        lines.append("    if (!call.use_current_device()) return nullptr;")
    lines.append("    if (!call.begin()) return nullptr;")
    called = f"{launcher.name}({', '.join([*names, 'call.stream()'])})"
    if launcher.returns == "void":
        lines += [f"    {called};", "    return call.finish(0);"]
    else:
        lines.append(f"    return call.finish({called});")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _conversion(parameter: Parameter, index: int, name: str) -> list[str]:
    place = f'arguments[{index}], {index + 1}, "{parameter.name}", "{parameter.ctype}"'
    if parameter.ctype.endswith("*"):
        dtype = _dtype(parameter.ctype)
        known = f'dtype_{dtype}, "{dtype}"' if dtype else "nullptr, nullptr"
        return [
            f"    void *{name};",
            f"    if (!call.tensor({place}, {known}, {'true' if parameter.const else 'false'}, &{name})) return nullptr;",
        ]
    if parameter.ctype == "bool":
        return [f"    bool {name};", f"    if (!call.boolean({place}, &{name})) return nullptr;"]
    if parameter.ctype in ("float", "double", *_NARROW):
        narrowed = _NARROW.get(parameter.ctype, f"static_cast<{parameter.ctype}>(wide)").replace("wide", f"wide{index}")
        return [
            f"    double wide{index};",
            f"    if (!call.number({place}, &wide{index})) return nullptr;",
            f"    {_c_type(parameter)} {name} = {narrowed};",
        ]
    if parameter.ctype == "unsigned long long":
        return [
            f"    unsigned long long {name};",
            f"    if (!call.unsigned_integer({place}, &{name})) return nullptr;",
        ]
    low, high = _INTEGER_RANGE[parameter.ctype]
    return [
        f"    long long wide{index};",
        f"    if (!call.integer({place}, {low}, {high}, &wide{index})) return nullptr;",
        f"    {parameter.ctype} {name} = static_cast<{parameter.ctype}>(wide{index});",
    ]


def _method(launcher: Launcher) -> str:
    returns = "int" if launcher.returns == "cudaError_t" else launcher.returns
    documentation = f"{signature(launcher)}\\n\\nReturns {returns} in C; raises when that is not 0 or a launch failed."
    call = f"reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(call_{launcher.name}))"
    return f'    {{"{launcher.name}", {call}, METH_FASTCALL, "{documentation}"}},'
