"""Integer, bit, comparison, selection and move instructions, with what the PTX ISA says they give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .bench import BITS, Case

INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
WORDS = ("b16", "b32", "b64")
AMOUNTS = (*range(70), 127, 128, 255, 256, 257, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
LUTS = (0x80, 0xFE, 0x96, 0xCA, 0xE8, 0x01, 0x3C, 0x00, 0xFF, 0x1B)


def _ones(kind: str) -> int:
    return (1 << BITS[kind]) - 1


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _clamped(value: int, kind: str) -> int:
    bits = BITS[kind]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def _quotient(a: int, b: int) -> int | None:
    # The ISA leaves division by zero open.
    return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - quotient * b


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * BITS[kind]}"


def arithmetic() -> list[Case]:
    """add, sub, mul, mad, div, rem, abs, neg, min, max, sad and their kin."""
    found = []
    for t in INTEGERS:
        bits = BITS[t]
        two = (t, t)
        found += [
            Case(f"add.{t} %d, %a, %b;", two, t, lambda a, b: a + b),
            Case(f"sub.{t} %d, %a, %b;", two, t, lambda a, b: a - b),
            Case(f"mul.lo.{t} %d, %a, %b;", two, t, lambda a, b: a * b),
            Case(f"mul.hi.{t} %d, %a, %b;", two, t, lambda a, b, n=bits: a * b >> n),
            Case(f"mad.lo.{t} %d, %a, %b, %c;", (*two, t), t, lambda a, b, c: a * b + c),
            Case(f"mad.hi.{t} %d, %a, %b, %c;", (*two, t), t, lambda a, b, c, n=bits: (a * b >> n) + c),
            Case(f"div.{t} %d, %a, %b;", two, t, _quotient),
            Case(f"rem.{t} %d, %a, %b;", two, t, _remainder),
            Case(f"min.{t} %d, %a, %b;", two, t, min),
            Case(f"max.{t} %d, %a, %b;", two, t, max),
            Case(f"sad.{t} %d, %a, %b, %c;", (*two, f"u{bits}"), f"u{bits}", lambda a, b, c: abs(a - b) + c),
        ]
        if bits < 64:
            wide = _wide(t)
            found.append(Case(f"mul.wide.{t} %d, %a, %b;", two, wide, lambda a, b: a * b))
            found.append(Case(f"mad.wide.{t} %d, %a, %b, %c;", (*two, wide), wide, lambda a, b, c: a * b + c))
        if t[0] == "s":
            found.append(Case(f"abs.{t} %d, %a;", (t,), t, abs))
            found.append(Case(f"neg.{t} %d, %a;", (t,), t, lambda a: -a))
    three = ("s32", "s32", "s32")
    found += [
        Case("add.sat.s32 %d, %a, %b;", three[:2], "s32", lambda a, b: _clamped(a + b, "s32")),
        Case("sub.sat.s32 %d, %a, %b;", three[:2], "s32", lambda a, b: _clamped(a - b, "s32")),
        Case("min.relu.s32 %d, %a, %b;", three[:2], "s32", lambda a, b: max(min(a, b), 0)),
        Case("max.relu.s32 %d, %a, %b;", three[:2], "s32", lambda a, b: max(a, b, 0)),
        Case("add.s32 %d, %a, -7;", ("s32",), "s32", lambda a: a - 7),
        Case("mad.lo.s32 %d, %a, 0xFFFFFFFF, 12U;", ("s32",), "s32", lambda a: 12 - a),
    ]
    for t, low in (("s32", lambda x: _signed(x, 24)), ("u32", lambda x: x & 0xFFFFFF)):
        two = (t, t)
        found += [
            Case(f"mul24.lo.{t} %d, %a, %b;", two, t, lambda a, b, f=low: f(a) * f(b)),
            Case(f"mul24.hi.{t} %d, %a, %b;", two, t, lambda a, b, f=low: f(a) * f(b) >> 16),
            Case(f"mad24.lo.{t} %d, %a, %b, %c;", (*two, t), t, lambda a, b, c, f=low: f(a) * f(b) + c),
            Case(f"mad24.hi.{t} %d, %a, %b, %c;", (*two, t), t, lambda a, b, c, f=low: (f(a) * f(b) >> 16) + c),
        ]
    found.append(
        Case(
            "mad24.hi.sat.s32 %d, %a, %b, %c;",
            three,
            "s32",
            lambda a, b, c: _clamped((_signed(a, 24) * _signed(b, 24) >> 16) + c, "s32"),
        )
    )
    return found


def _halves(function: Callable[[int, int], int], kind: str) -> Callable[[int, int], int]:
    def both(a: int, b: int) -> int:
        parts = []
        for shift in (0, 16):
            x, y = (a >> shift) & 0xFFFF, (b >> shift) & 0xFFFF
            parts.append(function(*((_signed(x, 16), _signed(y, 16)) if kind[0] == "s" else (x, y))) & 0xFFFF)
        return parts[0] | parts[1] << 16

    return both


def _dp4a(a_signed: bool, b_signed: bool) -> Callable[[int, int, int], int]:
    def dot(a: int, b: int, c: int) -> int:
        for k in range(0, 32, 8):
            x, y = (a >> k) & 255, (b >> k) & 255
            c += (_signed(x, 8) if a_signed else x) * (_signed(y, 8) if b_signed else y)
        return c

    return dot


def _dp2a(a_signed: bool, b_signed: bool, start: int) -> Callable[[int, int, int], int]:
    def dot(a: int, b: int, c: int) -> int:
        for k in range(2):
            x, y = (a >> (16 * k)) & 0xFFFF, (b >> (start + 8 * k)) & 255
            c += (_signed(x, 16) if a_signed else x) * (_signed(y, 8) if b_signed else y)
        return c

    return dot


def packed() -> list[Case]:
    """Instructions on two or four small integers in a register."""
    found = []
    for t in ("s16x2", "u16x2"):
        two = ("b32", "b32")
        found.append(Case(f"add.{t} %d, %a, %b;", two, "b32", _halves(lambda a, b: a + b, t)))
        found.append(Case(f"min.{t} %d, %a, %b;", two, "b32", _halves(min, t)))
        found.append(Case(f"max.{t} %d, %a, %b;", two, "b32", _halves(max, t)))
    relu = _halves(lambda a, b: max(a, b, 0), "s16")
    found.append(Case("max.relu.s16x2 %d, %a, %b;", ("b32", "b32"), "b32", relu))
    for a in ("s32", "u32"):
        for b in ("s32", "u32"):
            inputs = ("b32", "b32", "b32")
            signs = (a[0] == "s", b[0] == "s")
            found.append(Case(f"dp4a.{a}.{b} %d, %a, %b, %c;", inputs, "b32", _dp4a(*signs)))
            found.append(Case(f"dp2a.lo.{a}.{b} %d, %a, %b, %c;", inputs, "b32", _dp2a(*signs, 0)))
            found.append(Case(f"dp2a.hi.{a}.{b} %d, %a, %b, %c;", inputs, "b32", _dp2a(*signs, 16)))
    return found


def carries() -> list[Case]:
    """Chains over the carry flag; the case reads the high half and the carry beside it."""
    found = []
    for bits in (32, 64):
        t, top = f"u{bits}", (1 << bits) - 1
        four = (t, t, t, t)
        spare = "%y" if bits == 32 else "%z"

        def chained(a: int, b: int, c: int, e: int, n: int = bits) -> int:
            return (((a | c << n) + (b | e << n)) >> n) & ((1 << n) - 1)

        def borrowed(a: int, b: int, c: int, e: int, n: int = bits) -> int:
            return (((a | c << n) - (b | e << n)) >> n) & ((1 << n) - 1)

        def carry_out(a: int, b: int, c: int, e: int, n: int = bits) -> int:
            return ((a | c << n) + (b | e << n)) >> 2 * n

        found += [
            Case(f"add.cc.{t} {spare}, %a, %b; addc.{t} %d, %c, %e;", four, t, chained),
            Case(f"sub.cc.{t} {spare}, %a, %b; subc.{t} %d, %c, %e;", four, t, borrowed),
            Case(f"add.cc.{t} {spare}, %a, %b; addc.cc.{t} {spare}, %c, %e; addc.{t} %d, 0, 0;", four, t, carry_out),
            Case(
                f"sub.cc.{t} {spare}, %a, %b; subc.cc.{t} {spare}, %c, %e; subc.{t} %d, 0, 0;",
                four,
                t,
                lambda a, b, c, e, n=bits: -((a | c << n) < (b | e << n)),
            ),
            Case(
                f"mad.lo.cc.{t} {spare}, %a, %b, %c; madc.hi.{t} %d, %a, %b, %e;",
                four,
                t,
                lambda a, b, c, e, n=bits, m=top: ((a * b & m) + c >> n) + (a * b >> n) + e,
            ),
            Case(
                f"add.cc.{t} {spare}, %a, %b; madc.lo.cc.{t} {spare}, %a, %c, %e; madc.hi.cc.{t} {spare}, %a, %b, %c;"
                f"addc.{t} %d, 0, 0;",
                four,
                t,
                lambda a, b, c, e, n=bits, m=top: ((a * b >> n) + c + (((a * c & m) + e + (a + b >> n)) >> n)) >> n,
            ),
        ]
    return found


def _bfind(a: int, bits: int) -> int:
    size = (~a if a < 0 else a) & ((1 << bits) - 1)
    return size.bit_length() - 1 if size else 0xFFFFFFFF


def _bfe(a: int, b: int, c: int, kind: str) -> int:
    bits, value = BITS[kind], a & _ones(kind)
    start, length = b & 255, c & 255
    sign = (value >> min(start + length - 1, bits - 1)) & 1 if kind[0] == "s" and length else 0
    result = 0
    for k in range(bits):
        inside = k < length and start + k < bits
        result |= ((value >> (start + k)) & 1 if inside else sign) << k
    return result


def _bfi(a: int, b: int, c: int, e: int, bits: int) -> int:
    start, length = c & 255, e & 255
    for k in range(length):
        if start + k < bits:
            b = b & ~(1 << (start + k)) | ((a >> k) & 1) << (start + k)
    return b


def _prmt(a: int, b: int, c: int) -> int:
    result = 0
    for k in range(4):
        choice = (c >> (4 * k)) & 15
        byte = ((a | b << 32) >> (8 * (choice & 7))) & 255
        result |= ((255 if byte & 128 else 0) if choice & 8 else byte) << (8 * k)
    return result


# Bytes 3, 2, 1, 0 of the result by the two low bits of the selector (PTX ISA, prmt).
PRMT_MODES = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}


def _prmt_mode(a: int, b: int, c: int, mode: str) -> int:
    both = a | b << 32
    chosen = [(both >> (8 * n)) & 255 for n in PRMT_MODES[mode][c & 3]]
    return chosen[0] << 24 | chosen[1] << 16 | chosen[2] << 8 | chosen[3]


def _lop3(a: int, b: int, c: int, table: int) -> int:
    return sum(((table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | c >> k & 1)) & 1) << k for k in range(32))


def _bmsk(a: int, b: int, mode: str) -> int:
    if mode == "wrap":
        a, b = a & 31, b & 31
    return sum(1 << k for k in range(32) if a <= k < a + b)


def _szext(a: int, b: int, mode: str, kind: str) -> int:
    b = b & 31 if mode == "wrap" else min(b, 32)
    low = a & ((1 << b) - 1)
    return low - (1 << b) if kind == "s32" and b and low >> (b - 1) else low


def _fns(mask: int, base: int, n: int) -> int:
    if n == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    order = range(base, 32) if n > 0 else range(base, -1, -1)
    found = [k for k in order if mask >> k & 1]
    return found[abs(n) - 1] if len(found) >= abs(n) else 0xFFFFFFFF


def masks() -> list[Case]:
    """bmsk, szext and fns."""
    found = []
    for mode in ("clamp", "wrap"):
        few = {0: AMOUNTS, 1: AMOUNTS}
        found.append(Case(f"bmsk.{mode}.b32 %d, %a, %b;", ("u32", "u32"), "u32", partial(_bmsk, mode=mode), values=few))
        for kind in ("s32", "u32"):
            extend = partial(_szext, mode=mode, kind=kind)
            found.append(Case(f"szext.{mode}.{kind} %d, %a, %b;", (kind, "u32"), kind, extend, values={1: AMOUNTS}))
    near = {1: tuple(range(32)), 2: tuple(k & 0xFFFFFFFF for k in range(-9, 10))}
    found.append(Case("fns.b32 %d, %a, %b, %c;", ("b32", "u32", "s32"), "u32", _fns, values=near))
    return found


def bits() -> list[Case]:
    """Logic, shifts, counts and bit fields."""
    found = []
    for t in WORDS:
        n, two = BITS[t], (t, t)
        shift = {1: AMOUNTS}
        found += [
            Case(f"and.{t} %d, %a, %b;", two, t, lambda a, b: a & b),
            Case(f"or.{t} %d, %a, %b;", two, t, lambda a, b: a | b),
            Case(f"xor.{t} %d, %a, %b;", two, t, lambda a, b: a ^ b),
            Case(f"not.{t} %d, %a;", (t,), t, lambda a: ~a),
            Case(f"cnot.{t} %d, %a;", (t,), t, lambda a: a == 0),
            Case(f"shl.{t} %d, %a, %b;", (t, "u32"), t, lambda a, b, n=n: a << min(b, n), values=shift),
            Case(f"shr.{t} %d, %a, %b;", (t, "u32"), t, lambda a, b, n=n: a >> min(b, n), values=shift),
        ]
        for s in (f"s{n}", f"u{n}"):
            found.append(Case(f"shr.{s} %d, %a, %b;", (s, "u32"), s, lambda a, b, n=n: a >> min(b, n), values=shift))
    for n in (32, 64):
        t, u, s = f"b{n}", f"u{n}", f"s{n}"
        fields = {1: (*AMOUNTS[:66], 255), 2: (*AMOUNTS[:66], 255)}
        found += [
            Case(f"clz.{t} %d, %a;", (t,), "u32", lambda a, n=n: n - a.bit_length()),
            Case(f"popc.{t} %d, %a;", (t,), "u32", lambda a: a.bit_count()),
            Case(f"brev.{t} %d, %a;", (t,), t, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2)),
            Case(
                f"bfi.{t} %d, %a, %b, %c, %e;",
                (t, t, "u32", "u32"),
                t,
                lambda a, b, c, e, n=n: _bfi(a, b, c, e, n),
                values={2: fields[1], 3: fields[2]},
            ),
        ]
        for k in (u, s):
            inputs = (k, "u32", "u32")
            find = lambda a, n=n: _bfind(a, n)  # noqa: E731
            found += [
                Case(f"bfe.{k} %d, %a, %b, %c;", inputs, k, lambda a, b, c, k=k: _bfe(a, b, c, k), values=fields),
                Case(f"bfind.{k} %d, %a;", (k,), "u32", find),
                Case(
                    f"bfind.shiftamt.{k} %d, %a;",
                    (k,),
                    "u32",
                    lambda a, n=n: n - 1 - _bfind(a, n) if _bfind(a, n) != 0xFFFFFFFF else 0xFFFFFFFF,
                ),
            ]
    three = ("b32", "b32", "b32")
    for side in "lr":
        for mode in ("clamp", "wrap"):

            def funnel(a: int, b: int, c: int, side: str = side, mode: str = mode) -> int:
                amount = min(c, 32) if mode == "clamp" else c & 31
                both = a | b << 32
                return both << amount >> 32 if side == "l" else both >> amount

            found.append(Case(f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", three, "b32", funnel, values={2: AMOUNTS}))
    found += [
        Case(f"lop3.b32 %d, %a, %b, %c, {x:#x};", three, "b32", lambda a, b, c, x=x: _lop3(a, b, c, x)) for x in LUTS
    ]
    selectors = {2: [0x3210, 0x7654, 0x0123, 0xFEDC, 0x8888, 0x4040, 0x5140, 0xBA98, 0x0, 0xFFFF, 0x7531, 0x9]}
    found.append(Case("prmt.b32 %d, %a, %b, %c;", three, "b32", _prmt, values=selectors))
    for mode in PRMT_MODES:
        found.append(
            Case(
                f"prmt.b32.{mode} %d, %a, %b, %c;",
                three,
                "b32",
                lambda a, b, c, mode=mode: _prmt_mode(a, b, c, mode),
                values={2: (0, 1, 2, 3, 7)},
            )
        )
    return found


INTEGER_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}
BOOLEANS: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda p, q: p and q,
    "or": lambda p, q: p or q,
    "xor": lambda p, q: p != q,
}


def comparisons() -> list[Case]:
    """setp, set, selp and slct on integers, and predicate logic."""
    found = []
    for t in (*INTEGERS, *WORDS):
        for name, holds in INTEGER_COMPARISONS.items():
            if (t[0] == "b" and name not in ("eq", "ne")) or (name in ("lo", "ls", "hi", "hs") and t[0] != "u"):
                continue
            text = f"setp.{name}.{t} %p, %a, %b; selp.u32 %d, 1, 0, %p;"
            found.append(Case(text, (t, t), "u32", holds))
        if t[0] != "b":
            holds = INTEGER_COMPARISONS["lt"]
            found.append(Case(f"set.lt.u32.{t} %d, %a, %b;", (t, t), "u32", lambda a, b: -(a < b)))
            found.append(Case(f"set.ge.f32.{t} %d, %a, %b;", (t, t), "f32", lambda a, b: float(a >= b)))
    for name, combine in BOOLEANS.items():
        for sign in ("", "!"):
            flip = sign == "!"
            text = (
                f"setp.gt.s32 %q, %c, 0; setp.le.{name}.s32 %p|%r, %a, %b, {sign}%q;"
                "selp.u32 %y, 1, 0, %p; selp.u32 %d, 2, 0, %r; or.b32 %d, %d, %y;"
            )

            def both(a: int, b: int, c: int, f: Any = combine, flip: bool = flip) -> int:
                extra = (c > 0) != flip
                return int(f(a <= b, extra)) | int(f(a > b, extra)) << 1

            found.append(Case(text, ("s32", "s32", "s32"), "u32", both))
        text = f"setp.gt.s32 %q, %c, 0; set.ne.{name}.s32.s32 %d, %a, %b, %q;"
        three = ("s32", "s32", "s32")
        found.append(Case(text, three, "s32", lambda a, b, c, f=combine: -f(a != b, c > 0)))
        text = f"setp.gt.s32 %p, %a, 0; setp.gt.s32 %q, %b, 0; {name}.pred %r, %p, %q; selp.b32 %d, 1, 0, %r;"
        found.append(Case(text, three[:2], "u32", lambda a, b, f=combine: f(a > 0, b > 0)))
    text = "setp.gt.s32 %p, %a, 0; not.pred %q, %p; mov.pred %r, %q; @!%r bra L; mov.b32 %d, 9; L:"
    found.append(Case(text, ("s32",), "u32", lambda a: 0 if a > 0 else 9))
    for t in ("b16", "b32", "b64", "f32", "f64"):
        two = (t, t, "s32")
        found.append(
            Case(f"setp.lt.s32 %p, %c, 5; selp.{t} %d, %a, %b, %p;", two, t, lambda a, b, c: a if c < 5 else b)
        )
        found.append(Case(f"slct.{t}.s32 %d, %a, %b, %c;", two, t, lambda a, b, c: a if c >= 0 else b))
        chosen = (t, t, "f32")
        found.append(Case(f"slct.{t}.f32 %d, %a, %b, %c;", chosen, t, lambda a, b, c: a if c >= 0 else b))
    return found


def moves() -> list[Case]:
    """mov, and the ways to take registers apart and put them together."""
    found = [Case(f"mov.{t} %d, %a;", (t,), t, lambda a: a) for t in (*WORDS, *INTEGERS)]
    found += [
        Case("mov.b32 {%x, %x1}, %a; mov.b32 %d, {%x1, %x};", ("b32",), "b32", lambda a: a >> 16 | a << 16),
        Case("mov.b64 {%y, %y1}, %a; mov.b64 %d, {%y1, %y};", ("b64",), "b64", lambda a: a >> 32 | a << 32),
        Case("mov.b64 {%y, _}, %a; mov.b32 %d, %y;", ("b64",), "b32", lambda a: a),
        Case(
            "mov.b64 {%x, %x1, %x2, %x3}, %a; mov.b64 %d, {%x3, %x2, %x1, %x};",
            ("b64",),
            "b64",
            lambda a: sum(((a >> 16 * k) & 0xFFFF) << (48 - 16 * k) for k in range(4)),
        ),
        Case("mov.b32 %d, 0x80000001; xor.b32 %d, %d, %a;", ("b32",), "b32", lambda a: a ^ 0x80000001),
        Case("setp.eq.u32 %p, %a, 0; @%p mov.u32 %d, 3; @!%p mov.u32 %d, 4;", ("u32",), "u32", lambda a: 3 + (a > 0)),
    ]
    return found


def cases() -> list[Case]:
    """Every integer case."""
    return [*arithmetic(), *packed(), *carries(), *bits(), *masks(), *comparisons(), *moves()]
