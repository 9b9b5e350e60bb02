"""Loads, stores, atomic operations, asynchronous copies, barriers in memory, and addresses."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from . import ieee
from .bench import BITS, Case, edges, read

SCRATCH = ".global .align 16 .b8 scratch[16384];"
SHARED = ".shared .align 16 .b8 buffer[16384];"
LOCAL = ".local .align 16 .b8 own[32];"
# A function that hands 16 bytes back: what is stored for a call and what is read of its result.
ECHO = """
.func (.param .align 16 .b8 back[16]) echo(.param .align 16 .b8 given[16]) {
  .reg .b64 %r<2>;
  ld.param.v2.b64 {%r0, %r1}, [given];
  st.param.v2.b64 [back], {%r0, %r1};
  ret;
}
"""
# Address of this thread's 32 bytes, and what declares it.
SPACES = {
    "global": ("mov.u64 %w, scratch; mad.wide.u32 %w, %row, 32, %w;", "%w", ".global", "", SCRATCH),
    "generic": (
        "mov.u64 %w, scratch; mad.wide.u32 %w, %row, 32, %w; cvta.global.u64 %w, %w;",
        "%w",
        "",
        "",
        SCRATCH,
    ),
    "shared 32": ("mov.u32 %t, buffer; mad.lo.u32 %t, %row, 32, %t;", "%t", ".shared", SHARED, ""),
    "shared 64": ("mov.u64 %w, buffer; mad.wide.u32 %w, %row, 32, %w;", "%w", ".shared", SHARED, ""),
    "shared generic": (
        "mov.u64 %w, buffer; mad.wide.u32 %w, %row, 32, %w; cvta.shared.u64 %w, %w;",
        "%w",
        "",
        SHARED,
        "",
    ),
    "local 32": ("mov.u32 %t, own;", "%t", ".local", LOCAL, ""),
    "local 64": ("mov.u64 %w, own;", "%w", ".local", LOCAL, ""),
    "local generic": ("mov.u64 %w, own; cvta.local.u64 %w, %w;", "%w", "", LOCAL, ""),
}
WIDTHS = {16: "x", 32: "y", 64: "z"}
TYPES = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "b32")


def _pieces(a: int, memory: str, width: int, vector: int) -> int:
    """What the elements of a give when each is widened to a register and they are put together."""
    total = 0
    for k in range(vector):
        element = read((a >> (8 * k)) & ((1 << BITS[memory]) - 1), memory)
        total ^= (element & ((1 << width) - 1)) << (7 * k)
    return total & ((1 << 64) - 1)


def _split(width: int, vector: int) -> str:
    """Put a, shifted by whole bytes, into the registers that are stored."""
    text = ""
    for k, name in enumerate(_names(width, vector)):
        text += f"shr.u64 %at, %a, {8 * k}; cvt.u{width}.u64 {name}, %at;"
    return text


def _names(width: int, vector: int) -> list[str]:
    return [f"%{WIDTHS[width]}{k or ''}" for k in range(vector)]


def _join(width: int, vector: int) -> str:
    text = ""
    for k, name in enumerate(_names(width, vector)):
        text += f"cvt.u64.u{width} %at, {name}; shl.b64 %at, %at, {7 * k}; xor.b64 %d, %d, %at;"
    return text


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _combinations() -> list[tuple[str, int, int]]:
    found = []
    for memory in TYPES:
        for width in WIDTHS:
            for vector in (1, 2, 4):
                narrow = BITS[memory] == width and memory[0] == "s"
                if BITS[memory] <= width and BITS[memory] * vector <= 128 and (memory[0] != "b" or width == 32):
                    found.append((memory, width, vector))
                    assert not narrow or width >= 16
    return found


def accesses() -> list[Case]:
    """Every width, register and vector length in every space."""
    found = []
    for memory, width, vector in _combinations():
        names = _names(width, vector)
        listed, tail = _listed(names), (f".v{vector}" if vector > 1 else "") + f".{memory}"
        clear = "".join(f"mov.b{width} {name}, 0;" for name in names)
        reference = partial(_pieces, memory=memory, width=width, vector=vector)
        for address, register, space, declare, module in SPACES.values():
            text = (
                f"{_split(width, vector)}{address}"
                f"st{space}{tail} [{register}+16], {listed};{clear}ld{space}{tail} {listed}, [{register}+16];"
                f"{_join(width, vector)}"
            )
            found.append(Case(text, ("b64",), "b64", reference, declare=declare, module=module))
        text = (
            f"{_split(width, vector)}{{ .param .align 16 .b8 in[16]; .param .align 16 .b8 out[16];"
            "st.param.v2.b64 [in], {0, 0};"
            f"st.param{tail} [in], {listed}; call (out), echo, (in); {clear} ld.param{tail} {listed}, [out]; }}"
            f"{_join(width, vector)}"
        )
        found.append(Case(text, ("b64",), "b64", reference, module=ECHO))
        found.append(_parameter(memory, width, vector))
    return found


def _parameter(memory: str, width: int, vector: int) -> Case:
    """Read kernel parameters, which are addresses here, in pieces, and compare with the whole."""
    names, bits = _names(width, vector), BITS[memory]
    text = f"ld.param{f'.v{vector}' if vector > 1 else ''}.{memory} {_listed(names)}, [p0];"
    for k, name in enumerate(names):
        text += f"ld.param.u64 %at, [p{k * bits // 64}]; shr.u64 %at, %at, {k * bits % 64};"
        if bits < 64:
            text += f"bfe.{'s' if memory[0] == 's' else 'u'}64 %at, %at, 0, {bits};"
        text += f"cvt.u64.u{width} %w, {name};"
        if width < 64:
            text += f"bfe.u64 %at, %at, 0, {width};"
        text += "xor.b64 %at, %at, %w; or.b64 %d, %d, %at;"
    return Case(text, ("b64",), "b64", lambda a: 0)


def orders() -> list[Case]:
    """Caching, ordering and scope modifiers, absolute addresses, constants and predicated accesses."""
    mine, where, _, _, module = SPACES["global"]
    found = []
    loads: tuple[str, ...] = (
        "volatile.global",
        "relaxed.gpu.global",
        "acquire.sys.global",
        "global.nc",
        "global.ca",
        "global.cg",
    )
    loads += ("global.cs", "global.cv", "global.L1::no_allocate", "global.L2::128B", "relaxed.cta", "global.lu")
    for load in loads:
        text = f"{mine} st.global.u32 [{where}], %a; ld.{load}.u32 %d, [{where}];"
        if "nc" in load:  # its line is read-only by contract
            text = f"ld.param.u64 %w, [p0]; mad.wide.u32 %w, %row, 4, %w; ld.{load}.u32 %d, [%w];"
        found.append(Case(text, ("b32",), "b32", lambda a: a, module=module))
    for store in ("volatile.global", "relaxed.gpu.global", "release.gpu.global", "global.wb", "global.cg", "global.wt"):
        text = f"{mine} st.{store}.u32 [{where}], %a; ld.global.u32 %d, [{where}];"
        found.append(Case(text, ("b32",), "b32", lambda a: a, module=module))
    table = ".const .align 4 .u32 table[4] = {11, 22, 0x21, 44};"
    pick = "and.b32 %y, %a, 3; mov.u64 %w, table; mad.wide.u32 %w, %y, 4, %w; ld.const.u32 %d, [%w];"
    names = ".global .align 8 .u64 pointer = generic(target)+4; .global .align 4 .u32 target[2] = {5, 7};"
    names = names.split("; ")[1] + "\n" + names.split("; ")[0] + ";"
    half = ".global .align 8 .b8 bytes[8] = {1, 0xFF, 3, 4, 5, 6, 7, 200};\n.global .f32 number = 0f3FC00000;"
    same = lambda a: a  # noqa: E731
    found += [
        Case(pick, ("u32",), "u32", lambda a: (11, 22, 33, 44)[a & 3], module=table),
        Case("ld.const.u32 %d, [table+4];", ("u32",), "u32", lambda a: 22, module=table),
        Case("ld.global.u64 %w, [pointer]; ld.u32 %d, [%w];", ("u32",), "u32", lambda a: 7, module=names),
        Case("ld.global.s8 %d, [bytes+7];", ("u32",), "s32", lambda a: -56, module=half),
        Case("ld.global.f32 %d, [number];", ("u32",), "f32", lambda a: 1.5, module=half),
        Case(
            f"{mine} st.global.u32 [{where}], 5; setp.lt.s32 %p, %a, 0; mov.u32 %d, 1;"
            f"@%p st.global.u32 [{where}], %a; @!%p ld.global.u32 %d, [{where}];",
            ("s32",),
            "s32",
            lambda a: 1 if a < 0 else 5,
            module=module,
        ),
        Case(
            "st.shared.u32 [buffer+8], 77; bar.sync 0; ld.shared.u32 %y, [buffer+8]; add.u32 %d, %y, %a;",
            ("u32",),
            "u32",
            lambda a: a + 77,
            declare=SHARED,
        ),
        Case("st.local.u32 [own+4], %a; ld.local.u32 %d, [own+4];", ("u32",), "u32", same, declare=LOCAL),
        Case(
            f"{mine} st.global.b64 [{where}], %a; prefetch.global.L1 [{where}]; ldu.global.b64 %d, [{where}];",
            ("b64",),
            "b64",
            same,
            module=module,
        ),
        Case(
            f"{mine} st.global.v2.u32 [{where}], {{%a, 3}}; ld.global.v2.u32 {{_, %d}}, [{where}];",
            ("u32",),
            "u32",
            lambda a: 3,
            module=module,
        ),
    ]
    return found


Fold = Callable[[Any, Any], Any]


def _atomic(op: Fold, kind: str) -> Callable[..., int | None]:
    """Old value times three plus the new one, as bits: one number that shows both."""
    bits = BITS[kind]

    def result(a: Any, b: Any) -> int | None:
        new = op(a, b)
        if new is None or new != new:
            return None
        old = ieee.encode(a, kind) if kind in ieee.FORMS else a
        new = ieee.encode(new, kind) if kind in ieee.FORMS else new
        return (old * 3 + new) & ((1 << bits) - 1)

    return result


def _pair_atomic(kind: str) -> Callable[[tuple[float, float], tuple[float, float]], int | None]:
    form = ieee.FORMS[kind]

    def result(a: tuple[float, float], b: tuple[float, float]) -> int | None:
        sums = [ieee.add(x, y, form) for x, y in zip(a, b, strict=True)]
        if any(s != s for s in sums):
            return None
        old = ieee.encode(a[0], kind) | ieee.encode(a[1], kind) << 16
        new = ieee.encode(sums[0], kind) | ieee.encode(sums[1], kind) << 16
        return (old * 3 + new) & 0xFFFFFFFF

    return result


INTEGER_OPS: dict[str, Fold] = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}
ATOMICS = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
}


def _numbers(kind: str) -> list[int]:
    # Not subnormal: an H200 flushes those when it adds f32 in global memory, but not in shared.
    form = ieee.FORMS[kind[:-2] if kind.endswith("x2") else kind]
    plain = [
        b
        for b in edges(kind.removesuffix("x2"))
        if not 0 < abs(ieee.decode(b, kind.removesuffix("x2"))) < form.least_normal
    ]
    plain = [b for b in plain if not math.isnan(ieee.decode(b, kind.removesuffix("x2")))]
    return [b | plain[(5 * k + 2) % len(plain)] << 16 for k, b in enumerate(plain)] if kind.endswith("x2") else plain


def _adds(kind: str) -> Fold:
    form = ieee.FORMS[kind]

    def total(a: float, b: float) -> float | None:
        value = ieee.add(a, b, form)
        return None if 0 < abs(value) < form.least_normal else value

    return total


def _one(
    where: str,
    op: str,
    kind: str,
    reference: Callable[..., Any],
    *,
    red: bool = False,
    tail: str = "",
    values: dict[int, list[int]] | None = None,
) -> Case:
    address, register, space, declare, module = SPACES[where]
    bits = BITS[kind]
    unit = "x" if bits == 16 else "y" if bits == 32 else "z"
    operation = f"{op}{tail}.{kind}"
    act = f"atom{space}.{operation} %{unit}1, [{register}], %b;"
    if red:
        act = f"ld{space}.b{bits} %{unit}1, [{register}]; red{space}.{operation} [{register}], %b;"
    text = (
        f"{address} st{space}.b{bits} [{register}], %a; {act} ld{space}.b{bits} %{unit}2, [{register}];"
        f"mul.lo.u{bits} %{unit}1, %{unit}1, 3; add.u{bits} %d, %{unit}1, %{unit}2;"
    )
    return Case(text, (kind, kind), f"b{bits}", reference, declare=declare, module=module, values=values or {})


def atomics() -> list[Case]:
    """atom and red: every operation and type, in global and shared memory."""
    found = []
    for name in ("global", "generic", "shared 32", "shared 64", "shared generic"):
        address, register, space, declare, module = SPACES[name]
        around: dict[str, Any] = {"declare": declare, "module": module}

        one = partial(_one, name)
        for op, kinds in ATOMICS.items():
            for kind in kinds:
                floating = kind in ieee.FORMS
                fold = _adds(kind) if floating else INTEGER_OPS[op]
                values = {0: _numbers(kind), 1: _numbers(kind)} if floating else None
                found.append(one(op, kind, _atomic(fold, kind), values=values))
                if op != "exch" and name in ("global", "shared 32"):
                    found.append(one(op, kind, _atomic(fold, kind), red=True, values=values))
        for kind in ("f16", "bf16"):
            single = {0: _numbers(kind), 1: _numbers(kind)}
            found.append(one("add", kind, _atomic(_adds(kind), kind), tail=".noftz", values=single))
            pair = f"{kind}x2"
            both = {0: _numbers(pair), 1: _numbers(pair)}
            found.append(one("add", pair, _pair_atomic(kind), tail=".noftz", values=both))
        for bits in (16, 32, 64):
            unit = "x" if bits == 16 else "y" if bits == 32 else "z"
            text = (
                f"{address} st{space}.b{bits} [{register}], %a; atom{space}.cas.b{bits} %{unit}1, [{register}], %b, %c;"
                f"ld{space}.b{bits} %{unit}2, [{register}];"
                f"mul.lo.u{bits} %{unit}1, %{unit}1, 3; add.u{bits} %d, %{unit}1, %{unit}2;"
            )
            swap = lambda a, b, c: a * 3 + (c if a == b else a)  # noqa: E731
            few = {0: edges(f"b{bits}")[:4], 1: edges(f"b{bits}")[:4]}
            found.append(Case(text, (f"b{bits}",) * 3, f"b{bits}", swap, values=few, **around))
    return [*found, *_crowds()]


def _crowds() -> list[Case]:
    """Many threads on one address, vectors, scopes."""
    mine, where, _, _, module = SPACES["global"]
    clear = (
        "shr.u32 %t, %row, 5; mov.u32 %y, buffer; mad.lo.u32 %t, %t, 4, %y; st.shared.u32 [%t], 0; bar.warp.sync -1;"
    )
    found = []
    for op, start in (("add", 0), ("max", 0), ("or", 0), ("xor", 0)):
        fold = INTEGER_OPS[op]

        def together(lanes: list[int], fold: Fold = fold, start: int = start) -> list[int]:
            total = start
            for a in lanes:
                total = fold(total, a) & 0xFFFFFFFF
            return [total] * 32

        kind = "u32" if op in ("add", "max") else "b32"
        text = f"{clear} red.shared.{op}.{kind} [%t], %a; bar.warp.sync -1; ld.shared.u32 %d, [%t];"
        found.append(Case(text, ("u32",), "u32", together, warp=True, declare=SHARED))
    vector = (
        f"{mine} st.global.v2.f32 [{where}], {{%a, %b}}; atom.global.v2.f32.add {{%y, %y1}}, [{where}], {{%b, %a}};"
        f"ld.global.v2.f32 {{%y2, %y3}}, [{where}]; sub.u32 %y, %y, %a; sub.u32 %y1, %y1, %b; or.b32 %y, %y, %y1;"
        "sub.u32 %y2, %y2, %y3; or.b32 %y, %y, %y2; mov.b32 %d, %y3; setp.ne.u32 %p, %y, 0; @%p mov.u32 %d, 0;"
    )
    near = {k: [ieee.encode(x / 8, "f32") for x in range(1, 60)] for k in (0, 1)}
    found.append(Case(vector, ("f32", "f32"), "f32", lambda a, b: a + b, module=module, values=near))
    quad = (
        f"{mine} st.global.v4.f32 [{where}], {{%a, %a, %b, %b}}; red.global.v4.f32.add [{where}], {{%b, %a, %a, %b}};"
        f"ld.global.v4.f32 {{%y, %y1, %y2, %y3}}, [{where}]; add.f32 %y, %y, %y1; add.f32 %y2, %y2, %y3; add.f32 %d, %y, %y2;"
    )
    found.append(Case(quad, ("f32", "f32"), "f32", lambda a, b: 4 * a + 4 * b, module=module, values=near))
    for kind in ("f16", "bf16"):
        for op, fold in (("add", _adds(kind)), ("min", ieee.smaller), ("max", ieee.larger)):
            # Bytes of the two halves, each with the other operand.
            text = (
                f"{mine} st.global.b16 [{where}], %a; st.global.b16 [{where}+2], %b;"
                f"atom.global.v2.{kind}.{op}.noftz {{%x, %x1}}, [{where}], {{%b, %b}}; ld.global.b16 %d, [{where}];"
            )
            few = {k: [b for b in _numbers(kind) if b & 0x7FFF] for k in (0, 1)}
            found.append(Case(text, (kind, kind), kind, fold, module=module, values=few))
            pair = f"{kind}x2"
            text = (
                f"{mine} st.global.v2.b32 [{where}], {{%a, %b}}; red.global.v2.{pair}.{op}.noftz [{where}], {{%b, %a}};"
                f"ld.global.b32 %d, [{where}+4];"
            )
            both = lambda a, b, f=fold: tuple(map(f, b, a))  # noqa: E731
            few = {k: [b for b in _numbers(pair) if b & 0x7FFF and b & 0x7FFF0000] for k in (0, 1)}
            found.append(Case(text, (pair, pair), pair, both, module=module, values=few))
    text = f"{mine} st.global.u32 [{where}], %a; atom.acq_rel.gpu.global.add.u32 %d, [{where}], 1; ld.global.u32 %d, [{where}];"
    found.append(Case(text, ("u32",), "u32", lambda a: a + 1, module=module))
    return found


def copies() -> list[Case]:
    """cp.async and mbarrier."""
    source = "mov.u64 %w, scratch; mad.wide.u32 %w, %row, 32, %w;"
    target = "mov.u32 %t, buffer; mad.lo.u32 %t, %row, 32, %t;"
    fill = "st.global.v2.b64 [%w], {%a, %b}; st.shared.v2.b64 [%t], {7, 7};"
    get = "ld.shared.v2.b64 {%z, %z1}, [%t]; xor.b64 %d, %z, %z1;"
    around: dict[str, Any] = {"declare": SHARED, "module": SCRATCH}
    two = ("b64", "b64")
    both = lambda a, b: a ^ b  # noqa: E731
    found = [
        Case(
            f"{source}{target}{fill} cp.async.cg.shared.global [%t], [%w], 16; cp.async.wait_all; {get}",
            two,
            "b64",
            both,
            **around,
        ),
        Case(
            f"{source}{target}{fill} cp.async.ca.shared.global.L2::128B [%t], [%w], 16; cp.async.commit_group;"
            f"cp.async.wait_group 0; {get}",
            two,
            "b64",
            both,
            **around,
        ),
        Case(
            f"{source}{target}{fill} cp.async.ca.shared.global [%t+8], [%w+8], 8; cp.async.commit_group;"
            f"cp.async.ca.shared.global [%t], [%w], 4; cp.async.commit_group; cp.async.wait_group 1; cp.async.wait_all; {get}",
            two,
            "b64",
            lambda a, b: b ^ (a & 0xFFFFFFFF),
            **around,
        ),
        Case(
            f"{source}{target}{fill} and.b64 %z, %a, 15; cvt.u32.u64 %y, %z;"
            f"cp.async.cg.shared.global [%t], [%w], 16, %y; cp.async.wait_all; {get}",
            two,
            "b64",
            lambda a, b: _folded((a | b << 64) & ((1 << 8 * (a & 15)) - 1)),
            **around,
        ),
        Case(
            f"{source}{target}{fill} cvt.u64.u32 %z, %t; cp.async.ca.shared.global [%z], [%w], 4; cp.async.wait_all;"
            "ld.shared.u32 %d, [%t];",
            two,
            "u32",
            lambda a, b: a,
            **around,
        ),
    ]
    barrier = "mov.u64 %w, buffer; setp.eq.u32 %p, %row, 0;"
    wait = "again: mbarrier.test_wait.shared.b64 %q, [%w], %z; @!%q bra again;"
    share = "st.shared.u32 [%t+16], %a; "
    mine = "mov.u32 %t, buffer; mad.lo.u32 %t, %row, 16, %t;"
    found += [
        Case(
            f"{barrier}@%p mbarrier.init.shared.b64 [%w], 512; bar.sync 0; {mine}{share}"
            f"mbarrier.arrive.shared.b64 %z, [%w]; {wait} bar.sync 0; mov.u32 %d, 1; mbarrier.inval.shared.b64 [%w];",
            ("u32",),
            "u32",
            lambda a: 1,
            declare=SHARED,
        ),
        Case(
            "mov.u32 %t, buffer; setp.eq.u32 %p, %row, 0; @%p mbarrier.init.shared.b64 [%t], 512; bar.sync 0;"
            "mbarrier.arrive.shared.b64 %z, [%t]; again: mbarrier.try_wait.parity.shared.b64 %q, [%t], 0; @!%q bra again;"
            "mbarrier.arrive.shared.b64 %z, [%t]; more: mbarrier.try_wait.parity.shared.b64 %q, [%t], 1; @!%q bra more;"
            "mov.u32 %d, %a;",
            ("u32",),
            "u32",
            lambda a: a,
            declare=SHARED,
        ),
        Case(
            "mov.u32 %t, buffer; setp.eq.u32 %p, %row, 0; @%p mbarrier.init.shared.b64 [%t+16368], 1024; bar.sync 0;"
            f"{source}{target} st.global.u32 [%w], %a; cp.async.ca.shared.global [%t], [%w], 4;"
            "mov.u32 %y, buffer; cp.async.mbarrier.arrive.noinc.shared.b64 [%y+16368];"
            "mbarrier.arrive.shared.b64 %z, [%y+16368];"
            "again: mbarrier.test_wait.shared.b64 %q, [%y+16368], %z; @!%q bra again; ld.shared.u32 %d, [%t];",
            ("u32",),
            "u32",
            lambda a: a,
            declare=SHARED,
            module=SCRATCH,
        ),
    ]
    return found


def bulk() -> list[Case]:
    """cp.async.bulk and the bytes that an mbarrier counts."""
    first = "mov.u32 %t, buffer; setp.eq.u32 %p, %row, 0;"
    fill = "mov.u64 %w, scratch; mad.wide.u32 %at, %row, 4, %w; st.global.u32 [%at], %a; fence.proxy.async; bar.sync 0;"
    there = "mbarrier::complete_tx::bytes"
    wait = "again: mbarrier.try_wait.parity.shared.b64 %q, [%t+8192], 0; @!%q bra again;"
    mine = "mad.lo.u32 %y, %row, 4, %t;"
    around: dict[str, Any] = {"declare": SHARED, "module": SCRATCH}
    return [
        Case(
            f"{first} @%p mbarrier.init.shared.b64 [%t+8192], 1; {fill} @!%p bra wait;"
            "mbarrier.arrive.expect_tx.shared.b64 %z, [%t+8192], 2048;"
            f"cp.async.bulk.shared::cluster.global.{there} [%t], [%w], 1024, [%t+8192];"
            f"cp.async.bulk.shared::cluster.global.{there} [%t+1024], [%w+1024], 1024, [%t+8192];"
            f"wait: {wait}{mine} ld.shared.u32 %d, [%y];",
            ("u32",),
            "u32",
            lambda a: a,
            **around,
        ),
        Case(
            f"{first} @%p mbarrier.init.shared.b64 [%t+8192], 512; bar.sync 0; {mine}"
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%t+8192], 8; mbarrier.arrive.shared.b64 %z, [%t+8192];"
            "mbarrier.test_wait.parity.shared.b64 %q, [%t+8192], 0; selp.u32 %d, 1, 0, %q; bar.sync 0;"
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%t+8192], 8;"
            f"{wait} add.u32 %d, %d, %a;",
            ("u32",),
            "u32",
            lambda a: a,
            **around,
        ),
        Case(
            f"{first}{mine} st.shared.u32 [%y], %a; fence.proxy.async; bar.sync 0; mov.u64 %w, scratch; @!%p bra over;"
            "cp.async.bulk.global.shared::cta.bulk_group [%w], [%t], 2048; cp.async.bulk.commit_group;"
            "cp.async.bulk.wait_group 0; over: bar.sync 0; mad.wide.u32 %w, %row, 4, %w; ld.global.u32 %d, [%w];",
            ("u32",),
            "u32",
            lambda a: a,
            **around,
        ),
    ]


def _folded(value: int) -> int:
    return (value ^ value >> 64) & ((1 << 64) - 1)


def addresses() -> list[Case]:
    """cvta and isspacep."""
    spaces = {"global": ("scratch", "", SCRATCH), "shared": ("buffer", SHARED, ""), "local": ("own", LOCAL, "")}
    found = []
    for space, (name, declare, module) in spaces.items():
        for asked in spaces:
            text = (
                f"mov.u64 %w, {name}; cvta.{space}.u64 %w, %w; isspacep.{asked} %p, %w; selp.u32 %d, 1, 0, %p;"
                "add.u32 %d, %d, %a;"
            )
            reference = lambda a, same=asked == space: a + same  # noqa: E731
            found.append(Case(text, ("u32",), "u32", reference, declare=declare, module=module))
        text = "mov.b64 %z, p0; cvta.param.u64 %z, %z; ld.u64 %z, [%z]; ld.param.u64 %w, [p0]; sub.u64 %d, %z, %w;"
        found.append(Case(text, ("u32",), "u64", lambda a: 0))
        text = f"mov.u64 %w, {name}; cvta.{space}.u64 %z, %w; cvta.to.{space}.u64 %z, %z; sub.u64 %d, %z, %w;"
        found.append(Case(text, ("u32",), "u64", lambda a: 0, declare=declare, module=module))
    return found


def cases() -> list[Case]:
    """Every memory case."""
    return [*accesses(), *orders(), *atomics(), *copies(), *bulk(), *addresses()]
