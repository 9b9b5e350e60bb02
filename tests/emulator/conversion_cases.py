"""cvt between all types in all rounding modes, with the rules of the PTX ISA."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from . import ieee
from .bench import BITS, Case
from .ieee import FORMS, NAN

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
MODES = ("rn", "rz", "rm", "rp")


def _limits(kind: str) -> tuple[int, int]:
    bits = BITS[kind]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _clamped(value: int, kind: str) -> int:
    low, high = _limits(kind)
    return min(max(value, low), high)


def _register(kind: str) -> str:
    """A register of 8 bits is one of 16; conversions write its whole width."""
    return f"{kind[0]}16" if BITS[kind] == 8 else kind


def _wrapped(value: int, kind: str) -> int:
    bits = BITS[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def integers() -> list[Case]:
    """Integers to integers, cut off or saturated."""
    found = []
    for source in INTEGERS:
        for to in INTEGERS:
            text = f"cvt.{to}.{source} %d, %a;"
            found.append(Case(text, (source,), _register(to), partial(_wrapped, kind=to)))
            inside = _limits(to)[0] <= _limits(source)[0] and _limits(source)[1] <= _limits(to)[1]
            if not inside:  # else ptxas refuses to saturate
                text = f"cvt.sat.{to}.{source} %d, %a;"
                found.append(Case(text, (source,), _register(to), partial(_clamped, kind=to)))
    # Values in registers wider than their type: only the low bits count.
    for source in INTEGERS:
        for wider in (16, 32, 64):
            for width in (16, 32, 64):
                if wider <= max(BITS[source], 8) or width < BITS[source]:
                    continue
                to = f"{source[0]}{width}"
                value = lambda a, t=source: _wrapped(a, t)  # noqa: E731
                found.append(Case(f"cvt.{to}.{source} %d, %a;", (f"b{wider}",), to, value))
    found += [
        Case("cvt.u16.u32 %x, %a; cvt.s32.s8 %d, %x;", ("u32",), "s32", partial(_wrapped, kind="s8")),
        *(
            Case(f"cvt.rn.f32.{t} %d, %a;", (f"b{wider}",), "f32", lambda a, t=t: float(_wrapped(a, t)))
            for t in ("s8", "u8", "s16", "u16")
            for wider in (32, 64)
        ),
        Case("cvt.rn.sat.f32.s32 %d, %a;", ("s32",), "f32", lambda a: float(min(max(a, 0), 1))),
    ]
    return found


def _to_integer(x: float, source: str, to: str, mode: str, ftz: bool = False) -> int:
    if math.isnan(x):
        # PTX ISA, cvt: zero, or the top bit alone where the source or the result has 64 bits.
        return _wrapped(1 << (BITS[to] - 1), to) if source == "f64" or BITS[to] == 64 else 0
    if ftz:
        x = ieee.flush(x, FORMS["f32"])
    low, high = _limits(to)
    if math.isinf(x):
        return high if x > 0 else low
    return _clamped(int(ieee.integral(x, mode)), to)


def _from_integer(a: int, to: str, mode: str) -> float:
    return ieee.rounded(Fraction(a), FORMS[to], mode)


def between() -> list[Case]:
    """Floats to integers and back."""
    found = []
    for source in FLOATS:
        for to in INTEGERS:
            if source == "bf16" and BITS[to] == 8:
                continue
            for mode in INTEGRAL:
                if mode != "rzi" and to not in ("s32", "u8", "s64"):
                    continue
                convert = partial(_to_integer, source=source, to=to, mode=mode)
                found.append(Case(f"cvt.{mode}.{to}.{source} %d, %a;", (source,), _register(to), convert))
        convert = partial(_to_integer, source=source, to="s8", mode="rzi")
        if source != "bf16":
            found.append(Case(f"cvt.rzi.sat.s8.{source} %d, %a;", (source,), "s16", convert))
    flushed = partial(_to_integer, source="f32", to="s32", mode="rpi", ftz=True)
    found.append(Case("cvt.rpi.ftz.s32.f32 %d, %a;", ("f32",), "s32", flushed))
    for source in INTEGERS:
        for to in FLOATS:
            if to == "bf16" and BITS[source] == 8:
                continue
            for mode in MODES:
                if mode != "rn" and source not in ("s32", "u64", "s64"):
                    continue
                convert_back = partial(_from_integer, to=to, mode=mode)
                found.append(Case(f"cvt.{mode}.{to}.{source} %d, %a;", (source,), to, convert_back))
    return found


def _narrow(x: float, to: str, mode: str = "rn", *, ftz: bool = False, sat: bool = False, relu: bool = False) -> float:
    if ftz:
        x = ieee.flush(x, FORMS["f32"])
    if math.isfinite(x):
        x = math.copysign(ieee.rounded(Fraction(x), FORMS[to], mode), x)
    if ftz and to == "f32":
        x = ieee.flush(x, FORMS["f32"])
    if relu:
        return x if x > 0 or x != x else 0.0
    return ieee.saturate(x) if sat else x


def _finite(x: float, to: str, mode: str) -> float:
    value = _narrow(x, to, mode)
    top = FORMS[to].top
    return NAN if value != value else min(max(value, -top), top)


def floats() -> list[Case]:
    """Floats to floats."""
    found = []
    for source in FLOATS:
        for to in FLOATS:
            if source == to:
                continue
            exact = FORMS[to].precision >= FORMS[source].precision and {source, to} != {"f16", "bf16"}
            for mode in ("",) if exact else MODES:
                text = f"cvt{'.' if mode else ''}{mode}.{to}.{source} %d, %a;"
                found.append(Case(text, (source,), to, partial(_narrow, to=to, mode=mode or "rn")))
    found += [
        Case("cvt.rn.ftz.f32.f64 %d, %a;", ("f64",), "f32", lambda x: ieee.flush(_narrow(x, "f32"), FORMS["f32"])),
        Case("cvt.ftz.f64.f32 %d, %a;", ("f32",), "f64", partial(_narrow, to="f64", ftz=True)),
        Case("cvt.rn.ftz.f16.f32 %d, %a;", ("f32",), "f16", partial(_narrow, to="f16", ftz=True)),
        Case("cvt.rn.sat.f16.f32 %d, %a;", ("f32",), "f16", partial(_narrow, to="f16", sat=True)),
        Case("cvt.sat.f32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="f32", sat=True)),
        Case("cvt.ftz.sat.f32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="f32", ftz=True, sat=True)),
        Case("cvt.sat.f16.f16 %d, %a;", ("f16",), "f16", partial(_narrow, to="f16", sat=True)),
        Case("cvt.sat.f64.f64 %d, %a;", ("f64",), "f64", partial(_narrow, to="f64", sat=True)),
        Case("cvt.bf16.bf16 %d, %a;", ("bf16",), "bf16", partial(_narrow, to="bf16")),
        Case("cvt.sat.f32.f16 %d, %a;", ("f16",), "f32", partial(_narrow, to="f32", sat=True)),
        Case("cvt.rn.relu.f16.f32 %d, %a;", ("f32",), "f16", partial(_narrow, to="f16", relu=True)),
        Case("cvt.rz.relu.bf16.f32 %d, %a;", ("f32",), "bf16", partial(_narrow, to="bf16", mode="rz", relu=True)),
        Case("cvt.rna.tf32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="tf32", mode="rna")),
        Case("cvt.rn.tf32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="tf32")),
        Case("cvt.rz.tf32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="tf32", mode="rz")),
        Case("cvt.rn.relu.tf32.f32 %d, %a;", ("f32",), "f32", partial(_narrow, to="tf32", relu=True)),
    ]
    for kind in FLOATS:
        for mode in INTEGRAL:
            found.append(Case(f"cvt.{mode}.{kind}.{kind} %d, %a;", (kind,), kind, partial(ieee.integral, mode=mode)))
    flushed = lambda x: ieee.integral(ieee.flush(x, FORMS["f32"]), "rpi")  # noqa: E731
    found.append(Case("cvt.rpi.ftz.f32.f32 %d, %a;", ("f32",), "f32", flushed))
    clamped = lambda x: ieee.saturate(ieee.integral(x, "rmi"))  # noqa: E731
    found.append(Case("cvt.rmi.sat.f32.f32 %d, %a;", ("f32",), "f32", clamped))
    for t in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            both = lambda a, b, t=t, m=mode: (_narrow(b, t, m), _narrow(a, t, m))  # noqa: E731
            found.append(Case(f"cvt.{mode}.{t}x2.f32 %d, %a, %b;", ("f32", "f32"), f"{t}x2", both))
        positive = lambda a, b, t=t: (_narrow(b, t, relu=True), _narrow(a, t, relu=True))  # noqa: E731
        found.append(Case(f"cvt.rn.relu.{t}x2.f32 %d, %a, %b;", ("f32", "f32"), f"{t}x2", positive))
        for mode in ("rn", "rz"):
            finite: Callable[[float], float] = partial(_finite, to=t, mode=mode)
            found.append(Case(f"cvt.{mode}.satfinite.{t}.f32 %d, %a;", ("f32",), t, finite))
        finite_both = lambda a, b, t=t: (_finite(b, t, "rn"), _finite(a, t, "rn"))  # noqa: E731
        found.append(Case(f"cvt.rn.satfinite.{t}x2.f32 %d, %a, %b;", ("f32", "f32"), f"{t}x2", finite_both))
    return found


def _e4m3(bits: int) -> float:
    exponent, mantissa = bits >> 3 & 15, bits & 7
    if bits & 127 == 127:
        return NAN
    size = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    return -size if bits & 128 else size


def _e5m2(bits: int) -> float:
    return ieee.decode(bits << 8, "f16")


def _nearest_code(x: float, kind: str) -> int:
    """Return the fp8 code nearest to x: ties to the even code, NaN 0x7f, beyond the largest the largest."""
    value, largest = (_e4m3, 0x7E) if kind == "e4m3" else (_e5m2, 0x7B)
    if x != x:
        return 0x7F
    sign, size = (128 if math.copysign(1, x) < 0 else 0), abs(x)
    if size >= value(largest):
        return sign | largest
    exact = Fraction(size)
    below = max(code for code in range(largest + 1) if value(code) <= size)
    down, up = exact - Fraction(value(below)), Fraction(value(below + 1)) - exact
    return sign | (below + 1 if up < down or (up == down and below % 2) else below)


def eights() -> list[Case]:
    """fp8 to and from wider floats, two at a time."""
    found = []
    for kind, value in (("e4m3", _e4m3), ("e5m2", _e5m2)):
        pair = lambda a, b, kind=kind: _nearest_code(b, kind) | _nearest_code(a, kind) << 8  # noqa: E731
        found.append(Case(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", ("f32", "f32"), "b16", pair))
        positive = lambda a, b, kind=kind: (  # noqa: E731
            _nearest_code(b if not b <= 0 else 0.0, kind) | _nearest_code(a if not a <= 0 else 0.0, kind) << 8
        )
        found.append(Case(f"cvt.rn.satfinite.relu.{kind}x2.f32 %d, %a, %b;", ("f32", "f32"), "b16", positive))
        halves = lambda a, kind=kind: _nearest_code(a[0], kind) | _nearest_code(a[1], kind) << 8  # noqa: E731
        found.append(Case(f"cvt.rn.satfinite.{kind}x2.f16x2 %d, %a;", ("f16x2",), "b16", halves))
        codes = {0: [code | ((code * 7 + 1) & 255) << 8 for code in range(256)]}
        wide = lambda a, value=value: (value(a & 255), value(a >> 8))  # noqa: E731
        found.append(Case(f"cvt.rn.f16x2.{kind}x2 %d, %a;", ("b16",), "f16x2", wide, values=codes))
    return found


def packs() -> list[Case]:
    """Two integers saturated into the halves or bytes of a register."""

    def halves(a: int, b: int, kind: str) -> int:
        return (_clamped(a, kind) & 0xFFFF) << 16 | _clamped(b, kind) & 0xFFFF

    def shifted(a: int, b: int, c: int, kind: str) -> int:
        low = (_clamped(a, kind) & 255) << 8 | _clamped(b, kind) & 255
        return low | (c & 0xFFFF) << 16

    found = []
    for kind in ("s16", "u16"):
        found.append(Case(f"cvt.pack.sat.{kind}.s32 %d, %a, %b;", ("s32", "s32"), "b32", partial(halves, kind=kind)))
    for kind in ("s8", "u8"):
        text = f"cvt.pack.sat.{kind}.s32.b32 %d, %a, %b, %c;"
        found.append(Case(text, ("s32", "s32", "b32"), "b32", partial(shifted, kind=kind)))
    return found


def cases() -> list[Case]:
    """Every conversion."""
    return [*integers(), *between(), *floats(), *eights(), *packs()]
