"""Floating-point arithmetic, with exact results or the error bounds that the PTX ISA states."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from . import ieee
from .bench import Case
from .ieee import COMPARISONS, FORMS, NAN

MODES = ("rn", "rz", "rm", "rp")


def _sub(a: float, b: float, form: ieee.Form, mode: str = "rn") -> float:
    return ieee.add(a, -b, form, mode)


def _inverse(a: float, form: ieee.Form, mode: str = "rn") -> float:
    return ieee.div(1.0, a, form, mode)


TWO: dict[str, Callable[..., float]] = {"add": ieee.add, "sub": _sub, "mul": ieee.mul}


def _treated(function: Callable[..., float], kind: str, ftz: bool, sat: bool) -> Callable[..., Any]:
    form = FORMS[kind]

    def result(*values: float) -> float:
        if ftz:
            values = tuple(ieee.flush(x, form) for x in values)
        value = function(*values)
        if ftz:
            value = ieee.flush(value, form)
        return ieee.saturate(value) if sat else value

    return result


def _unless_tiny(function: Callable[..., float], form: ieee.Form) -> Callable[..., Any]:
    def result(*values: float) -> float | None:
        value = function(*values)
        return None if abs(value) == form.least_normal else value

    return result


def exact() -> list[Case]:
    """add, sub, mul, fma, div, sqrt, rcp in every rounding mode, with flushing and saturation."""
    found = []
    for t in ("f32", "f64"):
        form, two, three = FORMS[t], (t, t), (t, t, t)
        treatments = [("", False, False)]
        if t == "f32":
            treatments += [(".ftz", True, False), (".sat", False, True), (".ftz.sat", True, True)]
        for mode in MODES:
            for text, ftz, sat in treatments:
                for op, function in TWO.items():
                    reference = _treated(partial(function, form=form, mode=mode), t, ftz, sat)
                    found.append(Case(f"{op}.{mode}{text}.{t} %d, %a, %b;", two, t, reference))
                reference = _treated(partial(ieee.fma, form=form, mode=mode), t, ftz, sat)
                found.append(Case(f"fma.{mode}{text}.{t} %d, %a, %b, %c;", three, t, reference))
                if sat:
                    continue
                reference = _treated(partial(ieee.div, form=form, mode=mode), t, ftz, sat)
                if ftz:  # a quotient just under the smallest normal number, rounded up: an H200 flushes it first
                    reference = _unless_tiny(reference, form)
                found.append(Case(f"div.{mode}{text}.{t} %d, %a, %b;", two, t, reference))
                reference = _treated(partial(ieee.sqrt, form=form, mode=mode), t, ftz, sat)
                found.append(Case(f"sqrt.{mode}{text}.{t} %d, %a;", (t,), t, reference))
                reference = _treated(partial(_inverse, form=form, mode=mode), t, ftz, sat)
                found.append(Case(f"rcp.{mode}{text}.{t} %d, %a;", (t,), t, reference))
        literal = "0f40400000" if t == "f32" else "0d4008000000000000"
        found += [
            Case(f"mad.rn.{t} %d, %a, %b, %c;", three, t, partial(ieee.fma, form=form)),
            Case(f"add.{t} %d, %a, %b;", two, t, partial(ieee.add, form=form)),
            Case(f"mul.rn.{t} %d, %a, {literal};", (t,), t, partial(ieee.mul, 3.0, form=form)),
            Case(f"add.rn.{t} %d, %a, -1.5;", (t,), t, partial(ieee.add, -1.5, form=form)),
        ]
    return found


def _normal(a: float, form: ieee.Form) -> bool:
    return math.isfinite(a) and (abs(a) >= form.least_normal or a == 0)  # zeros count as normal


def _subnormal(a: float, form: ieee.Form) -> bool:
    return 0 < abs(a) < form.least_normal


def signs() -> list[Case]:
    """min, max, abs, neg, copysign and testp."""
    found = []
    for t in ("f32", "f64"):
        two = (t, t)
        found += [
            Case(f"min.{t} %d, %a, %b;", two, t, ieee.smaller),
            Case(f"max.{t} %d, %a, %b;", two, t, ieee.larger),
            Case(f"abs.{t} %d, %a;", (t,), t, abs),
            Case(f"neg.{t} %d, %a;", (t,), t, lambda a: -a),
            Case(f"copysign.{t} %d, %a, %b;", two, t, lambda a, b: math.copysign(b, a)),
        ]
        tests: dict[str, Callable[[float], bool]] = {
            "finite": math.isfinite,
            "infinite": math.isinf,
            "number": lambda a: not math.isnan(a),
            "notanumber": math.isnan,
            "normal": partial(_normal, form=FORMS[t]),
            "subnormal": partial(_subnormal, form=FORMS[t]),
        }
        for name, holds in tests.items():
            found.append(Case(f"testp.{name}.{t} %p, %a; selp.u32 %d, 1, 0, %p;", (t,), "u32", holds))
    two = ("f32", "f32")
    for op, function in (("min", ieee.smaller), ("max", ieee.larger)):
        strict = lambda a, b, f=function: f(a, b, True)  # noqa: E731
        found += [
            Case(f"{op}.ftz.f32 %d, %a, %b;", two, "f32", _treated(function, "f32", True, False)),
            Case(f"{op}.NaN.f32 %d, %a, %b;", two, "f32", strict),
            Case(f"{op}.ftz.NaN.f32 %d, %a, %b;", two, "f32", _treated(strict, "f32", True, False)),
        ]
    found.append(Case("abs.ftz.f32 %d, %a;", ("f32",), "f32", _treated(abs, "f32", True, False)))
    found.append(Case("neg.ftz.f32 %d, %a;", ("f32",), "f32", _treated(lambda a: -a, "f32", True, False)))
    return found


def _safe(function: Callable[[float], float]) -> Callable[[float], float]:
    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return NAN

    return value


def _reciprocal_root(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else NAN if x < 0 else 1 / math.sqrt(x)


def _log2(x: float) -> float:
    return -math.inf if x == 0 else NAN if x < 0 else math.log2(x)


def approximate() -> list[Case]:
    """The approximations, within the ISA's bounds."""
    f32 = FORMS["f32"]
    exp2, log2 = _safe(lambda x: 2.0**x), _safe(_log2)
    found = []
    for text, ftz in (("", False), (".ftz", True)):

        def one(op: str, function: Callable[[float], float], text: str = text, ftz: bool = ftz, **bound: Any) -> Case:
            reference = _treated(_safe(function), "f32", ftz, False)
            return Case(f"{op}.approx{text}.f32 %d, %a;", ("f32",), "f32", reference, **bound)

        divide = _treated(lambda a, b: ieee.div(a, b, f32), "f32", ftz, False)

        def divide_small(a: float, b: float, divide: Callable[..., float] = divide) -> float | None:
            return None if abs(b) > 2.0**126 or 0 < abs(divide(a, b)) < 2.0**-125 else divide(a, b)

        two = ("f32", "f32")
        small = [ieee.encode(x / 16, "f32") for x in range(-52, 53)]
        found += [
            Case(f"div.approx{text}.f32 %d, %a, %b;", two, "f32", divide_small, ulps=2),
            Case(f"div.full{text}.f32 %d, %a, %b;", two, "f32", divide_small, ulps=2),
            one("sqrt", lambda x: math.sqrt(x) if x else x, ulps=2),
            one("rcp", lambda x: ieee.div(1.0, x, f32), ulps=1),
            one("rsqrt", _reciprocal_root, ulps=4),
            one("ex2", exp2, ulps=2),
            one("lg2", log2, absolute=2.0**-22, ulps=2),
            Case(f"sin.approx{text}.f32 %d, %a;", ("f32",), "f32", math.sin, absolute=2.0**-20.5, values={0: small}),
            Case(f"cos.approx{text}.f32 %d, %a;", ("f32",), "f32", math.cos, absolute=2.0**-20.5, values={0: small}),
        ]
    for op in ("sin", "cos"):  # beyond [-pi, pi] the ISA states no bound, but infinities give NaN
        reference = lambda x: NAN if not math.isfinite(x) else None  # noqa: E731
        found.append(Case(f"{op}.approx.f32 %d, %a;", ("f32",), "f32", reference))
    found.append(Case("tanh.approx.f32 %d, %a;", ("f32",), "f32", math.tanh, ulps=2.0**13))
    root = _treated(_reciprocal_root, "f64", False, False)
    flushed = _treated(_reciprocal_root, "f64", True, False)
    inverse = _treated(lambda x: ieee.div(1.0, x, FORMS["f64"]), "f64", True, False)
    found += [
        Case("rsqrt.approx.f64 %d, %a;", ("f64",), "f64", root, ulps=2.0**30),
        Case("rsqrt.approx.ftz.f64 %d, %a;", ("f64",), "f64", flushed, ulps=2.0**33),
        Case("rcp.approx.ftz.f64 %d, %a;", ("f64",), "f64", inverse, ulps=2.0**33),
    ]
    return found


def comparisons() -> list[Case]:
    """setp and set with every comparison."""
    found = []
    for t in ("f32", "f64", "f16", "bf16"):
        for name, holds in COMPARISONS.items():
            found.append(Case(f"setp.{name}.{t} %p, %a, %b; selp.u32 %d, 1, 0, %p;", (t, t), "u32", holds))
            if t not in ("f32", "f64"):
                continue
            text = f"setp.{name}.{t} %q|%p, %a, %b; selp.u32 %d, 1, 0, %p;"
            found.append(Case(text, (t, t), "u32", lambda a, b, f=holds: not f(a, b)))
        for result, one in (("u32", -1), ("s32", -1), ("f32", 1.0)):
            if t in ("f16", "bf16") and result == "f32":
                continue
            reference = lambda a, b, one=one: one if a <= b else one * 0  # noqa: E731
            found.append(Case(f"set.le.{result}.{t} %d, %a, %b;", (t, t), result, reference))
    for t in ("f16", "f32"):
        flushed = lambda a, b, form=FORMS[t]: ieee.flush(a, form) < ieee.flush(b, form)  # noqa: E731
        found.append(Case(f"setp.lt.ftz.{t} %p, %a, %b; selp.u32 %d, 1, 0, %p;", (t, t), "u32", flushed))
        found.append(Case(f"set.lt.ftz.u32.{t} %d, %a, %b;", (t, t), "u32", lambda a, b, f=flushed: -f(a, b)))
    found += [
        Case("set.gt.u16.f16 %d, %a, %b;", ("f16", "f16"), "u16", lambda a, b: -(a > b)),
        Case("set.gtu.s16.bf16 %d, %a, %b;", ("bf16", "bf16"), "u16", lambda a, b: -(not a <= b)),
        Case("set.gt.f16.f16 %d, %a, %b;", ("f16", "f16"), "f16", lambda a, b: float(a > b)),
        Case("set.gt.bf16.bf16 %d, %a, %b;", ("bf16", "bf16"), "bf16", lambda a, b: float(a > b)),
        Case("set.gt.f16.f32 %d, %a, %b;", ("f32", "f32"), "f16", lambda a, b: float(a > b)),
        Case("set.gt.f16.s32 %d, %a, %b;", ("s32", "s32"), "f16", lambda a, b: float(a > b)),
        Case(
            "slct.ftz.f32.f32 %d, %a, %b, %c;",
            ("f32", "f32", "f32"),
            "f32",
            lambda a, b, c: a if ieee.flush(c, FORMS["f32"]) >= 0 else b,
        ),
    ]
    for t in ("f16", "bf16"):
        pair = f"{t}x2"
        for name in ("eq", "ne", "lt", "geu", "nan"):
            holds = COMPARISONS[name]
            text = f"setp.{name}.{pair} %p|%q, %a, %b; selp.u32 %d, 1, 0, %p; selp.u32 %y, 2, 0, %q; or.b32 %d, %d, %y;"
            both = lambda a, b, f=holds: f(a[0], b[0]) | f(a[1], b[1]) << 1  # noqa: E731
            found.append(Case(text, (pair, pair), "u32", both))
            ones = lambda a, b, f=holds: 0xFFFF * f(a[0], b[0]) | 0xFFFF0000 * f(a[1], b[1])  # noqa: E731
            found.append(Case(f"set.{name}.u32.{pair} %d, %a, %b;", (pair, pair), "u32", ones))
            floats = lambda a, b, f=holds: (float(f(a[0], b[0])), float(f(a[1], b[1])))  # noqa: E731
            found.append(Case(f"set.{name}.{pair}.{pair} %d, %a, %b;", (pair, pair), pair, floats))
    return found


def _relu(x: float) -> float:
    return x if x > 0 or x != x else 0.0


def halves() -> list[Case]:
    """f16 and bf16, single and in pairs."""
    found = []
    for t in ("f16", "bf16"):
        form = FORMS[t]
        singles: list[tuple[str, int, Callable[..., float], dict[str, Any]]] = []
        for op, function in TWO.items():
            plain = partial(function, form=form)
            singles.append((f"{op}.rn", 2, plain, {}))
            if t == "f16":
                singles.append((f"{op}.rn.ftz", 2, _treated(plain, t, True, False), {}))
                singles.append((f"{op}.rn.sat", 2, _treated(plain, t, False, True), {}))
                singles.append((f"{op}.rn.ftz.sat", 2, _treated(plain, t, True, True), {}))
        fused = partial(ieee.fma, form=form)
        singles.append(("fma.rn", 3, fused, {}))
        singles.append(("fma.rn.relu", 3, lambda a, b, c, f=fused: _relu(f(a, b, c)), {}))
        if t == "f16":
            singles.append(("fma.rn.ftz", 3, _treated(fused, t, True, False), {}))
            singles.append(("fma.rn.sat", 3, _treated(fused, t, False, True), {}))
            flushed = _treated(fused, t, True, False)
            singles.append(("fma.rn.ftz.relu", 3, lambda *x, f=flushed: _relu(f(*x)), {}))
        for op, function in (("min", ieee.smaller), ("max", ieee.larger)):
            singles.append((op, 2, function, {}))
            singles.append((f"{op}.NaN", 2, lambda a, b, f=function: f(a, b, True), {}))
            if t == "f16":
                singles.append((f"{op}.ftz", 2, _treated(function, t, True, False), {}))
        singles.append(("abs", 1, abs, {}))
        singles.append(("neg", 1, lambda a: -a, {}))
        if t == "f16":
            singles.append(("abs.ftz", 1, _treated(abs, t, True, False), {}))
            singles.append(("neg.ftz", 1, _treated(lambda a: -a, t, True, False), {}))
        exp2 = _safe(lambda x: 2.0**x)
        # ex2: 2^-9.9 relative in f16, 2^-7 in bf16; tanh: 2^-10.987 absolute, 2^-8.
        singles.append(
            ("ex2.approx" + (".ftz" if t == "bf16" else ""), 1, _treated(exp2, t, t == "bf16", False), {"ulps": 2.2})
        )
        singles.append(("tanh.approx", 1, math.tanh, {"ulps": 1, "absolute": 2.0**-10.987 if t == "f16" else 2.0**-8}))
        for op, count, function, bound in singles:
            registers = ", ".join(f"%{r}" for r in "abc"[:count])
            found.append(Case(f"{op}.{t} %d, {registers};", (t,) * count, t, function, **bound))
            pair = f"{t}x2"
            both = lambda *x, f=function: tuple(f(*part) for part in zip(*x, strict=True))  # noqa: E731
            found.append(Case(f"{op}.{pair} %d, {registers};", (pair,) * count, pair, both, **bound))
    return found


def cases() -> list[Case]:
    """Every floating-point case."""
    return [*exact(), *signs(), *approximate(), *comparisons(), *halves()]
