"""Runs one instruction over many operands: a kernel per case, many kernels to a module."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import ieee

LANES = 512
BITS = {"pred": 32, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "tf32": 32, "f16x2": 32, "bf16x2": 32}
BITS |= {f"{letter}{bits}": bits for letter in "bsu" for bits in (8, 16, 32, 64)}
HEADER = ".version 8.3\n.target sm_90\n.address_size 64\n"


@dataclass(frozen=True)
class Case:
    """One instruction, or a few that belong together.

    The text reads %a, %b, %c and %e and writes %d; %p, %q and %r are predicates; %x, %y and %z, also with 1 to 3
    behind them, are spare registers of 16, 32 and 64 bits, and so are %t (32) and %w (64); %row numbers the threads. `reference` takes one thread's operands, as integers or floats, and returns
    its result; with `warp` it takes lists over the 32 lanes of a warp.
    """

    text: str
    inputs: tuple[str, ...]
    result: str
    reference: Callable[..., Any]
    ulps: float = 0
    """Error allowed in units of the last place of the exact result, 0 for none."""
    absolute: float = 0
    """Error allowed beside that."""
    warp: bool = False
    values: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Operands drawn from a list of their own, as bits, instead of from edge cases of their type."""
    declare: str = ""
    """Variables of the kernel."""
    module: str = ""
    """What must stand before the kernel: functions, variables."""

    @property
    def opcodes(self) -> set[str]:
        """The instructions of the text and of the functions it calls, by their first word."""
        text = f"{self.text};{self.module}".replace("{", ";").replace("}", ";")
        lines = [[w for w in line.split() if not w.startswith("@")] for line in text.split(";")]
        return {line[0].split(".")[0] for line in lines if line and not line[0].endswith(":")}


def _floats(kind: str) -> list[float]:
    form = ieee.FORMS["f32" if kind == "tf32" else kind]
    one_up = 1.0 + math.ldexp(1.0, 1 - form.precision)
    positive = [0.0, 1.0, one_up, 1.5, 2.0, 3.0, 0.5, form.top, form.least_normal, form.least, math.inf]
    positive += [form.least_normal - form.least, form.least * 3, 0.1015625, 100.0, 2.5]
    return [sign * x for x in positive for sign in (1, -1)] + [math.nan]


def edges(kind: str) -> list[int]:
    """Return the bits of the operands where instructions of a type go wrong."""
    if kind in ieee.FORMS:
        return [ieee.encode(x, kind) for x in _floats(kind)]
    if kind in ("f16x2", "bf16x2"):
        halves = edges(kind[:-2])
        return [low | halves[(7 * k + 3) % len(halves)] << 16 for k, low in enumerate(halves)]
    bits = BITS[kind]
    ones = (1 << bits) - 1
    some = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100, 127, 128, 255]
    some += [ones, ones - 1, ones >> 1, (ones >> 1) + 1, (ones >> 1) + 2, ones // 3, ones // 5 * 3, ones // 255]
    return [x & ones for x in some]


def _random(kind: str, draw: random.Random) -> int:
    if kind in ("f16x2", "bf16x2"):
        return _random(kind[:-2], draw) | _random(kind[:-2], draw) << 16
    bits = draw.getrandbits(BITS[kind])
    if kind in ieee.FORMS and draw.random() < 0.7:  # most of them near one, where sums and products interact
        form = ieee.FORMS["f32" if kind == "tf32" else kind]
        x = draw.choice((-1, 1)) * math.ldexp(1 + draw.getrandbits(form.precision - 1) / 2 ** (form.precision - 1), 0)
        return ieee.encode(math.ldexp(x, draw.randrange(-13, 14)), kind)
    return bits >> draw.randrange(BITS[kind]) if kind not in ieee.FORMS and draw.random() < 0.3 else bits


def operands(case: Case) -> list[list[int]]:
    """Return the bits of each operand for every thread."""
    draw = random.Random(case.text)
    lists = [list(case.values.get(k, edges(kind))) for k, kind in enumerate(case.inputs)]
    columns: list[list[int]] = [[] for _ in lists]
    every = list(itertools.product(*lists)) if math.prod(map(len, lists)) <= 4096 else []
    if not every:
        every = [tuple(draw.choice(values) for values in lists) for _ in range(LANES)]
    draw.shuffle(every)
    keep = min(len(every), LANES * 3 // 4)
    for row in every[:keep]:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    for k, (column, kind) in enumerate(zip(columns, case.inputs, strict=True)):
        while len(column) < LANES:
            column.append(draw.choice(lists[k]) if k in case.values else _random(kind, draw))
    return columns


def kernel(case: Case, name: str) -> str:
    """Return the PTX of a kernel that runs the case in every thread."""
    lines = [
        f".visible .entry {name}(" + ", ".join(f".param .u64 p{k}" for k in range(len(case.inputs) + 1)) + ")",
        "{",
    ]
    lines += [".reg .pred %p, %q, %r;", ".reg .b16 %x, %x1, %x2, %x3;", ".reg .b32 %y, %y1, %y2, %y3, %row, %block;"]
    lines += [".reg .b64 %z, %z1, %z2, %z3, %at, %w;", ".reg .b32 %t;", case.declare]
    for register, kind in zip("abce", case.inputs):
        lines.append(f".reg .b{max(BITS[kind], 16)} %{register};")
    lines.append(f".reg .b{max(BITS[case.result], 16)} %d;")
    lines += ["mov.u32 %row, %tid.x;", "mov.u32 %block, %ctaid.x;", "mad.lo.u32 %row, %block, 512, %row;"]
    for k, (register, kind) in enumerate(zip("abce", case.inputs)):
        size = BITS[kind] // 8
        lines += [f"ld.param.u64 %at, [p{k}];", f"mad.wide.u32 %at, %row, {size}, %at;"]
        lines.append(f"ld.global.{'s' if kind[0] == 's' else 'u'}{BITS[kind]} %{register}, [%at];")
    lines += [f"mov.b{max(BITS[case.result], 16)} %d, 0;", case.text]
    size = BITS[case.result] // 8
    lines += [f"ld.param.u64 %at, [p{len(case.inputs)}];", f"mad.wide.u32 %at, %row, {size}, %at;"]
    lines += [f"st.global.u{BITS[case.result]} [%at], %d;", "ret;", "}"]
    return "\n".join(line for line in lines if line)


def read(bits: int, kind: str) -> Any:
    """Return bits as the number they stand for: an integer, a float, or a pair of floats."""
    if kind in ieee.FORMS:
        return ieee.decode(bits, kind)
    if kind in ("f16x2", "bf16x2"):
        return (ieee.decode(bits & 0xFFFF, kind[:-2]), ieee.decode(bits >> 16, kind[:-2]))
    return bits - (1 << BITS[kind]) if kind[0] == "s" and bits >> (BITS[kind] - 1) else bits


def expected(case: Case, columns: list[list[int]]) -> list[Any]:
    """Return the reference's result for every thread."""
    read_columns = [[read(bits, kind) for bits in column] for column, kind in zip(columns, case.inputs, strict=True)]
    if not case.warp:
        return [case.reference(*row) for row in zip(*read_columns, strict=True)]
    results: list[Any] = []
    for start in range(0, LANES, 32):
        results += case.reference(*(column[start : start + 32] for column in read_columns))
    return results


def _agree(got: float, want: float, kind: str, case: Case) -> bool:
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if got == want:
        return math.copysign(1, got) == math.copysign(1, want) or bool(case.ulps or case.absolute)
    if not (case.ulps or case.absolute):
        return False
    form = ieee.FORMS["f32" if kind == "tf32" else kind]
    if math.isinf(got) or math.isinf(want):
        return case.ulps > 0 and min(abs(got), abs(want)) >= form.top * (1 - case.ulps * 2.0**-form.precision)
    place = math.ldexp(1.0, max(math.frexp(want)[1] - 1, form.smallest) - form.precision + 1)
    return abs(got - want) <= case.ulps * place + case.absolute


def differences(case: Case, columns: list[list[int]], got: np.ndarray[Any, Any], want: list[Any]) -> list[str]:
    """Return what disagrees, as a reader would want to see it."""
    found = []
    for k, (raw, wanted) in enumerate(zip(got.tolist(), want, strict=True)):
        if wanted is None:  # undefined by the ISA
            continue
        kind = case.result
        if kind in ieee.FORMS:
            fine = _agree(read(raw, kind), wanted, kind, case)
        elif kind in ("f16x2", "bf16x2"):
            pairs = zip(read(raw, kind), wanted, strict=True)
            fine = all(_agree(mine, other, kind[:-2], case) for mine, other in pairs)
        else:
            wanted = int(wanted) & ((1 << BITS[kind]) - 1)
            fine = raw == wanted
        if not fine:
            shown = ", ".join(f"{read(c[k], t)!r} ({c[k]:#x})" for c, t in zip(columns, case.inputs, strict=True))
            value = read(wanted, kind) if isinstance(wanted, int) and kind not in ieee.FORMS else wanted
            found.append(f"{case.text}\n  of {shown}\n  gave {read(raw, kind)!r} ({raw:#x}), should be {value!r}")
    return found
