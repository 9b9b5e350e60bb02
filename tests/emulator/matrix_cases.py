"""Tensor-core instructions: whole warps over small matrices of small numbers, so that every sum is exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from . import ieee
from .bench import Case

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s32": 32}
Matrix = list[list[int]]


@dataclass(frozen=True)
class Product:
    """D = A x B + C by one warp: how the kernel says it, and how the fragments lie."""

    name: str
    m: int
    n: int
    k: int
    kinds: tuple[str, str, str, str]
    """Types of D, A, B, C."""
    kernel: Callable[[str], str]
    """PTX of a kernel of that name that takes A, B, C and D by address."""
    load: Callable[[Matrix, str, str], bytes]
    """Bytes in memory of a matrix, its role (a, b, c) and type."""
    saturates: bool = False


def encoded(value: float, kind: str) -> int:
    """Return a number's bits."""
    if kind in ("s8", "u8", "s32"):
        return int(value) & ((1 << BITS[kind]) - 1)
    return ieee.encode(float(value), "f32" if kind == "tf32" else kind)


def packed(values: Sequence[float], kind: str) -> bytes:
    """Return numbers one after another in memory."""
    return b"".join(encoded(v, kind).to_bytes(BITS[kind] // 8, "little") for v in values)


def operands(product: Product) -> tuple[Matrix, Matrix, Matrix]:
    """Return A, B and C, of small integers; large C where the sum must saturate."""
    draw = random.Random(product.name)
    low, high = (0, 9) if product.kinds[1] == "u8" else (-8, 9)
    a = [[draw.randrange(low, high) for _ in range(product.k)] for _ in range(product.m)]
    low = 0 if product.kinds[2] == "u8" else -8
    b = [[draw.randrange(low, 9) for _ in range(product.n)] for _ in range(product.k)]
    limits = (-(2**31), 2**31 - 1) if product.saturates else (-20, 20)
    c = [
        [draw.choice(limits) if product.saturates else draw.randrange(*limits) for _ in range(product.n)]
        for _ in range(product.m)
    ]
    return a, b, c


def expected(product: Product) -> Matrix:
    """Return A x B + C, wrapped or clamped where it is of integers."""
    a, b, c = operands(product)
    sums = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]
    total = [[s + x for s, x in zip(p, q, strict=True)] for p, q in zip(sums, c, strict=True)]
    if product.kinds[0] != "s32":
        return total
    if product.saturates:
        return [[min(max(x, -(2**31)), 2**31 - 1) for x in row] for row in total]
    return [[(x + 2**31) % 2**32 - 2**31 for x in row] for row in total]


def places(role: str, kind: str, m: int, k: int) -> list[list[list[tuple[int, int]]]]:
    """Return, for each lane and register, the (row, column) of its elements (PTX ISA, fragments of mma.m16n8k*).

    In m16n8k16 of f16, lane 5 holds A[1][2] and A[1][3] in its first register.
    """
    per = max(1, 32 // BITS[kind])
    lanes = []
    for lane in range(32):
        group, member = lane >> 2, lane & 3
        registers: list[list[tuple[int, int]]] = []
        if role == "a":
            for block in range(0, k, 4 * per):
                for half in range(0, m, 8):
                    registers.append([(group + half, block + member * per + e) for e in range(per)])
        elif role == "b":
            for block in range(0, k, 4 * per):
                registers.append([(block + member * per + e, group) for e in range(per)])
        else:
            for half in range(0, m, 8):
                pair = [(group + half, 2 * member), (group + half, 2 * member + 1)]
                registers += [pair] if BITS[kind] == 16 else [[p] for p in pair]
        lanes.append(registers)
    return lanes


def fragments(matrix: Matrix, role: str, kind: str, m: int, k: int) -> bytes:
    """Return the registers of all lanes, lane after lane."""
    found = b""
    for registers in places(role, kind, m, k):
        for elements in registers:
            found += packed([matrix[row][column] for row, column in elements], kind)
    return found


def gathered(data: bytes, kind: str, m: int, n: int) -> Matrix:
    """Return the matrix D that lanes stored register after register."""
    size, result, at = BITS[kind] // 8, [[0] * n for _ in range(m)], 0
    for registers in places("c", kind, m, 0):
        for elements in registers:
            for row, column in elements:
                result[row][column] = _number(data[at : at + size], kind)
                at += size
    return result


def _number(data: bytes, kind: str) -> int:
    if kind in ("s8", "s32"):
        return int.from_bytes(data, "little", signed=True)
    value = ieee.decode(int.from_bytes(data, "little"), kind)
    return int(value) if value == int(value) else 10**9  # never a sum of these


def _mma_kernel(name: str, text: str, kinds: tuple[str, str, str, str], m: int, k: int) -> str:
    """Load the fragments register after register, multiply, store."""
    width = {x: 64 if x == "f64" else 32 for x in kinds}
    counts = [len(places(role, kind, m, k)[0]) for role, kind in zip("cabc", kinds, strict=True)]
    lines = [f".visible .entry {name}(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{"]
    lines.append(".reg .b64 %at; .reg .u32 %row;")
    for register, kind in zip("dabc", kinds, strict=True):
        lines.append(f".reg .{'f64' if kind == 'f64' else 'b32'} %{register}<8>;")
    lines.append("mov.u32 %row, %tid.x;")
    for parameter, (register, kind, count) in enumerate(zip("abc", kinds[1:], counts[1:], strict=True)):
        size = count * width[kind] // 8
        lines.append(f"ld.param.u64 %at, [p{parameter}]; mad.wide.u32 %at, %row, {size}, %at;")
        unit = "f64" if kind == "f64" else "b32"
        lines += [f"ld.global.{unit} %{register}{i}, [%at+{i * width[kind] // 8}];" for i in range(count)]
    groups = ["{" + ", ".join(f"%{r}{i}" for i in range(count)) + "}" for r, count in zip("dabc", counts, strict=True)]
    lines.append(f"{text} {', '.join(groups)};")
    lines.append(f"ld.param.u64 %at, [p3]; mad.wide.u32 %at, %row, {counts[0] * width[kinds[0]] // 8}, %at;")
    unit = "f64" if kinds[0] == "f64" else "b32"
    lines += [f"st.global.{unit} [%at+{i * width[kinds[0]] // 8}], %d{i};" for i in range(counts[0])]
    return "\n".join([*lines, "ret; }"])


MMA = [
    (16, 8, 16, ("f32", "f16", "f16", "f32")),
    (16, 8, 16, ("f16", "f16", "f16", "f16")),
    (16, 8, 8, ("f32", "f16", "f16", "f32")),
    (16, 8, 8, ("f16", "f16", "f16", "f16")),
    (16, 8, 16, ("f32", "bf16", "bf16", "f32")),
    (16, 8, 8, ("f32", "bf16", "bf16", "f32")),
    (16, 8, 8, ("f32", "tf32", "tf32", "f32")),
    (16, 8, 4, ("f32", "tf32", "tf32", "f32")),
    (16, 8, 16, ("s32", "s8", "s8", "s32")),
    (16, 8, 16, ("s32", "u8", "s8", "s32")),
    (16, 8, 32, ("s32", "s8", "u8", "s32")),
    (16, 8, 32, ("s32", "u8", "u8", "s32")),
    (8, 8, 4, ("f64", "f64", "f64", "f64")),
]


def mma() -> list[Product]:
    """mma.sync in its shapes and types."""
    found = []
    for m, n, k, kinds in MMA:
        for saturates in (False, True) if kinds[0] == "s32" else (False,):
            limit = ".satfinite" if saturates else ""
            text = f"mma.sync.aligned.m{m}n{n}k{k}.row.col{limit}.{'.'.join(kinds)}"
            kernel = partial(_mma_kernel, text=text, kinds=kinds, m=m, k=k)
            load = partial(fragments, m=m, k=k)
            found.append(Product(text, m, n, k, kinds, kernel, load, saturates))
    return found


# How many registers a lane holds of A, B and C (PTX ISA, wmma).
WMMA = [
    (16, 16, 16, ("f32", "f16", "f16", "f32"), (8, 8, 8)),
    (16, 16, 16, ("f16", "f16", "f16", "f16"), (8, 8, 4)),
    (32, 8, 16, ("f32", "f16", "f16", "f32"), (8, 8, 8)),
    (8, 32, 16, ("f32", "f16", "f16", "f32"), (8, 8, 8)),
    (16, 16, 16, ("f32", "bf16", "bf16", "f32"), (4, 4, 8)),
    (32, 8, 16, ("f32", "bf16", "bf16", "f32"), (8, 2, 8)),
    (16, 16, 8, ("f32", "tf32", "tf32", "f32"), (4, 4, 8)),
    (16, 16, 16, ("s32", "s8", "s8", "s32"), (2, 2, 8)),
    (8, 32, 16, ("s32", "u8", "u8", "s32"), (1, 4, 8)),
    (8, 8, 4, ("f64", "f64", "f64", "f64"), (1, 1, 2)),
]


def _wmma_kernel(
    name: str,
    shape: str,
    kinds: tuple[str, str, str, str],
    counts: tuple[int, int, int],
    sides: tuple[str, str, str],
    strides: tuple[int, int, int],
    shared: bool,
    limit: str,
) -> str:
    lines = [f".visible .entry {name}(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{"]
    lines.append(
        ".reg .b64 %at; .shared .align 16 .b8 tile[4096]; .reg .b32 %t, %i, %v; .reg .b64 %from; .reg .pred %p;"
    )
    for register, kind in zip("dabc", kinds, strict=True):
        lines.append(f".reg .{'f64' if kind == 'f64' else 'f32' if kind == 'f32' else 'b32'} %{register}<8>;")
    groups = {}
    for position, (register, kind, count) in enumerate(zip("abc", kinds[1:], counts, strict=True)):
        groups[register] = "{" + ", ".join(f"%{register}{i}" for i in range(count)) + "}"
        lines.append(f"ld.param.u64 %at, [p{position}];")
        where = "[%at]"
        if shared:  # copy the tile, word by word, and load it from there
            lines.append(
                f"mov.u32 %i, %tid.x; copy{position}: mad.wide.u32 %from, %i, 4, %at; ld.global.u32 %v, [%from];"
                f"mov.u32 %t, tile; mad.lo.u32 %t, %i, 4, %t; st.shared.u32 [%t], %v; add.u32 %i, %i, 32;"
                f"setp.lt.u32 %p, %i, 256; @%p bra copy{position}; bar.warp.sync -1;"
            )
            where = "[tile]"
        space = ".shared" if shared else ".global"
        lines.append(
            f"wmma.load.{register}.sync.aligned.{sides[position]}.{shape}{space}.{kind} {groups[register]}, {where}, {strides[position]};"
        )
        if shared:
            lines.append("bar.warp.sync -1;")
    groups["d"] = "{" + ", ".join(f"%d{i}" for i in range(counts[2])) + "}"
    types = f"{kinds[0]}.{kinds[3]}" if kinds[1] == "f16" else ".".join(kinds)
    lines.append(
        f"wmma.mma.sync.aligned.{sides[0]}.{sides[1]}.{shape}.{types}{limit} {groups['d']}, {groups['a']}, {groups['b']}, {groups['c']};"
    )
    lines.append("ld.param.u64 %at, [p3];")
    lines.append(f"wmma.store.d.sync.aligned.{sides[2]}.{shape}.global.{kinds[0]} [%at], {groups['d']}, {strides[2]};")
    return "\n".join([*lines, "ret; }"])


def _laid_out(matrix: Matrix, role: str, kind: str, sides: tuple[str, str, str]) -> bytes:
    side = sides["abc".index(role)]
    rows = matrix if side == "row" else [list(column) for column in zip(*matrix, strict=True)]
    data = b"".join(packed(row, kind) for row in rows)
    return data + bytes(max(0, 1024 - len(data)))  # the kernel copies 1024 bytes to shared memory


def wmma() -> list[tuple[Product, str]]:
    """wmma in its shapes, types and layouts; with each, how D lies in memory."""
    found = []
    layouts = (("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row"))
    for m, n, k, kinds, counts in WMMA:
        for sides in layouts:
            for shared in (False, True):
                strides = (
                    k if sides[0] == "row" else m,
                    n if sides[1] == "row" else k,
                    n if sides[2] == "row" else m,
                )
                limit = ".satfinite" if kinds[0] == "s32" and shared else ""
                kernel = partial(
                    _wmma_kernel,
                    shape=f"m{m}n{n}k{k}",
                    kinds=kinds,
                    counts=counts,
                    sides=sides,
                    strides=strides,
                    shared=shared,
                    limit=limit,
                )
                name = f"wmma m{m}n{n}k{k} {' '.join(kinds)} {' '.join(sides)} {'shared' if shared else 'global'}"
                load = partial(_laid_out, sides=sides)
                found.append((Product(name, m, n, k, kinds, kernel, load, bool(limit)), sides[2]))
    return found


def stored(data: bytes, kind: str, m: int, n: int, side: str) -> Matrix:
    """Return a matrix D that lies in memory by rows or columns."""
    size = BITS[kind] // 8
    flat = [_number(data[i * size : (i + 1) * size], kind) for i in range(m * n)]
    if side == "row":
        return [flat[r * n : (r + 1) * n] for r in range(m)]
    return [[flat[c * m + r] for c in range(n)] for r in range(m)]


def _halves(words: list[int]) -> list[int]:
    return [h for word in words for h in (word & 0xFFFF, word >> 16)]


def _loaded(a: list[int], matrix: int, transposed: bool) -> list[int]:
    """Matrix number `matrix` of those whose rows the warp wrote: 16 bytes a row, of the lane's word and its like."""
    rows = [_halves([(a[8 * matrix + r] + 0x10001 * w) & 0xFFFFFFFF for w in range(4)]) for r in range(8)]
    results = []
    for lane in range(32):
        pair = []
        for e in range(2):
            row, column = lane // 4, 2 * (lane % 4) + e
            pair.append(rows[column][row] if transposed else rows[row][column])
        results.append(pair[0] | pair[1] << 16)
    return results


ROWS = ".shared .align 16 .b8 buffer[8192];"
FILL = (
    "mov.u32 %t, buffer; mad.lo.u32 %t, %row, 16, %t; add.u32 %y, %a, 0x10001; add.u32 %y1, %y, 0x10001;"
    "add.u32 %y2, %y1, 0x10001; st.shared.v4.b32 [%t], {%a, %y, %y1, %y2}; bar.warp.sync -1;"
)


def rows() -> list[Case]:
    """ldmatrix, stmatrix and movmatrix."""
    found = []
    for turn in ("", ".trans"):
        for count in (1, 2, 4):
            names = ["%y", "%y1", "%y2", "%y3"][:count]
            mix = "mov.b32 %d, %y;" + "".join(
                f"mul.lo.u32 {name}, {name}, {2 * k + 1}; add.u32 %d, %d, {name};" for k, name in enumerate(names) if k
            )
            text = f"{FILL} ldmatrix.sync.aligned.m8n8.x{count}{turn}.shared.b16 {{{', '.join(names)}}}, [%t]; {mix}"

            def loaded(a: list[int], count: int = count, turned: bool = bool(turn)) -> list[int]:
                parts = [_loaded(a, n, turned) for n in range(count)]
                return [sum((2 * n + 1) * part[lane] for n, part in enumerate(parts)) for lane in range(32)]

            found.append(Case(text, ("b32",), "u32", loaded, warp=True, declare=ROWS))
            # Store what was loaded, elsewhere in the lane's own rows, and read one word back.
            text = (
                f"{FILL} ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{', '.join(names)}}}, [%t]; bar.warp.sync -1;"
                f"stmatrix.sync.aligned.m8n8.x{count}{turn}.shared.b16 [%t], {{{', '.join(names)}}}; bar.warp.sync -1;"
                "ld.shared.b32 %d, [%t+4];"
            )

            def stored_word(a: list[int], count: int = count, turned: bool = bool(turn)) -> list[int]:
                results = []
                for lane in range(32):
                    matrix, row = divmod(lane, 8)
                    inside = [
                        _halves([(a[8 * matrix + r] + 0x10001 * w) & 0xFFFFFFFF for w in range(4)]) for r in range(8)
                    ]
                    if turned and matrix < count:
                        inside = [list(column) for column in zip(*inside, strict=True)]
                    results.append(inside[row][2] | inside[row][3] << 16)
                return results

            found.append(Case(text, ("b32",), "u32", stored_word, warp=True, declare=ROWS))
    text = "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;"

    def moved(a: list[int]) -> list[int]:
        dense = [[h for word in a[4 * r : 4 * r + 4] for h in (word & 0xFFFF, word >> 16)] for r in range(8)]
        return [dense[2 * (k % 4)][k // 4] | dense[2 * (k % 4) + 1][k // 4] << 16 for k in range(32)]

    found.append(Case(text, ("b32",), "u32", moved, warp=True))
    return found


def cases() -> list[Case]:
    """The cases that fit the common bench."""
    return rows()
