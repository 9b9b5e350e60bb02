"""Exact binary floating point, one number at a time: the plain reference that instructions are held against.

Numbers are Python floats, which hold every f16, bf16, tf32 and f32. Results are computed as fractions and rounded
once, so nothing here shares an arithmetic unit, or an idea, with the emulator's C++.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

NAN = math.nan


@dataclass(frozen=True)
class Form:
    """A binary format: bits of precision, smallest and largest exponent."""

    precision: int
    smallest: int
    largest: int

    @property
    def top(self) -> float:
        """The largest finite number."""
        return math.ldexp(2**self.precision - 1, self.largest - self.precision + 1)

    @property
    def least_normal(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, self.smallest)

    @property
    def least(self) -> float:
        """The smallest number above zero."""
        return math.ldexp(1.0, self.smallest - self.precision + 1)


FORMS = {
    "f16": Form(11, -14, 15),
    "bf16": Form(8, -126, 127),
    "tf32": Form(11, -126, 127),
    "f32": Form(24, -126, 127),
    "f64": Form(53, -1022, 1023),
    "e5m2": Form(3, -14, 15),
}


def rounded(exact: Fraction, form: Form, mode: str = "rn") -> float:
    """Round to nearest even (rn), toward zero (rz), down (rm), up (rp), or nearest with ties away (rna).

    1/3 in f16 is 0.333251953125 by rn and rm, 0.33349609375 by rp.
    """
    if exact == 0:
        return 0.0
    negative, size = exact < 0, abs(exact)
    top, bottom = size.numerator, size.denominator
    exponent = top.bit_length() - bottom.bit_length()
    if (top << max(-exponent, 0)) < (bottom << max(exponent, 0)):
        exponent -= 1
    last = max(exponent, form.smallest) - form.precision + 1
    scaled_top, scaled_bottom = top << max(-last, 0), bottom << max(last, 0)
    whole, rest = divmod(scaled_top, scaled_bottom)
    away = {
        "rn": 2 * rest > scaled_bottom or (2 * rest == scaled_bottom and whole % 2 == 1),
        "rna": 2 * rest >= scaled_bottom,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    whole += away
    if whole.bit_length() - 1 + last > form.largest:
        outward = mode in ("rn", "rna") or (mode == "rp" and not negative) or (mode == "rm" and negative)
        value = math.inf if outward else form.top
    else:
        value = math.ldexp(whole, last)
    return -value if negative else value


def _zero_sum(a: float, b: float, mode: str) -> float:
    # Both are zero, or they cancel: zeros of one sign keep it, others give +0, or -0 when rounding down.
    if a == 0 and b == 0 and math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, form: Form, mode: str = "rn") -> float:
    """Return a + b."""
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b) and a != b):
        return NAN
    if math.isinf(a) or math.isinf(b):
        return a if math.isinf(a) else b
    exact = Fraction(a) + Fraction(b)
    return rounded(exact, form, mode) if exact else _zero_sum(a, b, mode)


def mul(a: float, b: float, form: Form, mode: str = "rn") -> float:
    """Return a * b."""
    if math.isnan(a) or math.isnan(b):
        return NAN
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or math.isinf(b):
        return NAN if a == 0 or b == 0 else sign * math.inf
    exact = Fraction(a) * Fraction(b)
    return math.copysign(rounded(exact, form, mode), sign)


def fma(a: float, b: float, c: float, form: Form, mode: str = "rn") -> float:
    """Return a * b + c, rounded once."""
    if math.isnan(a) or math.isnan(b) or math.isnan(c):
        return NAN
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or math.isinf(b):
        if a == 0 or b == 0 or (math.isinf(c) and c != sign * math.inf):
            return NAN
        return sign * math.inf
    if math.isinf(c):
        return c
    product = Fraction(a) * Fraction(b)
    exact = product + Fraction(c)
    if exact:
        return rounded(exact, form, mode)
    return _zero_sum(math.copysign(0.0, sign) if product == 0 else 1.0, c, mode)


def div(a: float, b: float, form: Form, mode: str = "rn") -> float:
    """Return a / b."""
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return NAN
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or b == 0:
        return sign * math.inf
    if math.isinf(b):
        return sign * 0.0
    return math.copysign(rounded(Fraction(a) / Fraction(b), form, mode), sign)


def sqrt(a: float, form: Form, mode: str = "rn") -> float:
    """Return the square root of a."""
    if math.isnan(a) or a < 0:
        return NAN
    if a == 0 or math.isinf(a):
        return a
    exact = Fraction(a)
    # Enough bits of the root, then one more that says whether anything is left over.
    shift = 2 * (form.precision + 8) + 2 * max(0, -math.frexp(a)[1])
    scaled = (exact.numerator << shift) // exact.denominator
    root = math.isqrt(scaled)
    left = root * root != scaled or (exact.numerator << shift) % exact.denominator
    return rounded(Fraction(2 * root + bool(left), 2 << (shift // 2)), form, mode)


def flush(x: float, form: Form) -> float:
    """Return a zero of the same sign for a subnormal number."""
    return math.copysign(0.0, x) if abs(x) < form.least_normal else x


def saturate(x: float) -> float:
    """Return x clamped to [0, 1], zero for NaN."""
    return min(max(x, 0.0), 1.0) + 0.0 if x == x else 0.0


def smaller(a: float, b: float, propagate: bool = False) -> float:
    """Return the smaller of two; a number beats NaN unless NaN propagates; -0 is below +0."""
    if math.isnan(a) or math.isnan(b):
        return NAN if propagate or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    return min((a, b), key=lambda x: (x, math.copysign(1, x)))


def larger(a: float, b: float, propagate: bool = False) -> float:
    """Return the larger of two, by the rules of `smaller`."""
    return -smaller(-a, -b, propagate)


def integral(x: float, mode: str) -> float:
    """Round to an integer: rni, rzi, rmi, rpi; zeros keep the sign of x."""
    if not math.isfinite(x):
        return x
    ways: dict[str, Callable[[float], int]] = {
        "rni": lambda y: round(y),
        "rzi": math.trunc,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    return math.copysign(float(ways[mode](x)), x)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a < b or a > b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: not (a < b or a > b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
    "num": lambda a, b: a == a and b == b,
    "nan": lambda a, b: not (a == a and b == b),
}


def encode(x: float, kind: str) -> int:
    """Return the bits of a number that the format holds exactly."""
    if kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", x))[0])
    if kind == "f16":
        return int(struct.unpack("<H", struct.pack("<e", x))[0])
    bits = int(struct.unpack("<I", struct.pack("<f", x))[0])
    return bits >> 16 if kind == "bf16" else bits


def decode(bits: int, kind: str) -> float:
    """Return the number that the bits stand for."""
    if kind == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
    if kind == "f16":
        return float(struct.unpack("<e", struct.pack("<H", bits))[0])
    return float(struct.unpack("<f", struct.pack("<I", bits << 16 if kind == "bf16" else bits))[0])
