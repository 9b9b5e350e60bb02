"""Instructions between lanes, barriers, branches, calls and special registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .bench import Case

SHARED = ".shared .align 16 .b8 buffer[4096];"
ALL = 0xFFFFFFFF


def _shuffled(values: list[int], offsets: list[int], mode: str, clamp: int, mask: int = ALL) -> list[int | None]:
    """The lane a value comes from, by the pseudocode of the ISA; 2^24 is added where the predicate holds."""
    results: list[int | None] = []
    segment, limit = clamp >> 8 & 31, clamp & 31
    for lane in range(32):
        if not mask >> lane & 1:
            results.append(0)
            continue
        offset = offsets[lane] & 31
        top = (lane & segment) | (limit & ~segment & 31)
        source = {
            "up": lane - offset,
            "down": lane + offset,
            "bfly": lane ^ offset,
            "idx": (lane & segment) | (offset & ~segment & 31),
        }[mode]
        inside = source >= top if mode == "up" else source <= top
        source = source if inside else lane
        value = (values[source] & 0xFFFFFF) + (inside << 24)
        results.append(value if mask >> source & 1 else None)
    return results


def shuffles() -> list[Case]:
    """shfl.sync in all modes and widths, whole warps and parts."""
    found = []
    for mode in ("up", "down", "bfly", "idx"):
        for width in (32, 16, 8, 4, 2, 1):
            clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
            text = (
                f"and.b32 %y, %a, 0xFFFFFF; shfl.sync.{mode}.b32 %d|%p, %y, %b, {clamp:#x}, -1;"
                "@%p add.u32 %d, %d, 0x1000000;"
            )
            reference = lambda a, b, m=mode, c=clamp: _shuffled(a, b, m, c)  # noqa: E731
            found.append(Case(text, ("b32", "u32"), "u32", reference, warp=True))
        text = f"and.b32 %y, %a, 0xFFFFFF; shfl.sync.{mode}.b32 %d, %y, 3, {0 if mode == 'up' else 31}, -1;"
        plain = lambda a, m=mode: [  # noqa: E731
            None if x is None else x & 0xFFFFFF for x in _shuffled(a, [3] * 32, m, 0 if m == "up" else 31)
        ]
        found.append(Case(text, ("b32",), "u32", plain, warp=True))
        mask = 0x0F0F00FF
        text = (
            f"and.b32 %y, %row, 31; shl.b32 %t, 1, %y; and.b32 %t, %t, {mask}; setp.eq.u32 %q, %t, 0; @%q bra over;"
            f"and.b32 %y, %a, 0xFFFFFF; shfl.sync.{mode}.b32 %d|%p, %y, %b, {0 if mode == 'up' else 31}, {mask};"
            "@%p add.u32 %d, %d, 0x1000000; over:"
        )
        part = lambda a, b, m=mode: _shuffled(a, b, m, 0 if m == "up" else 31, 0x0F0F00FF)  # noqa: E731
        found.append(Case(text, ("b32", "u32"), "u32", part, warp=True))
    return found


def _masked(values: list[bool]) -> int:
    return sum(int(bool(value)) << lane for lane, value in enumerate(values))


# Each warp sees operands of few values, so that votes and matches are not all alike.
FEW = {0: (0, 1, 1, 1, 7)}
SAME = {0: (5,)}
PART = "and.b32 %y, %row, 31; setp.ge.u32 %q, %y, 20; @%q bra over; setp.gt.s32 %p, %a, 0; {} over:"


def votes() -> list[Case]:
    """vote, match, redux, elect, activemask and bar.warp.sync."""
    found = []
    folds: dict[str, Callable[[list[bool]], bool]] = {
        "all": all,
        "any": any,
        "uni": lambda values: len(set(values)) == 1,
    }
    for values in (FEW, SAME, {0: (0,)}):
        for mode, fold in folds.items():
            text = f"setp.gt.s32 %p, %a, 0; vote.sync.{mode}.pred %q, %p, -1; selp.u32 %d, 1, 0, %q;"
            whole = lambda a, f=fold: [f([x > 0 for x in a])] * 32  # noqa: E731
            found.append(Case(text, ("s32",), "u32", whole, warp=True, values=values))
            text = f"setp.gt.s32 %p, %a, 0; vote.sync.{mode}.pred %q, !%p, -1; selp.u32 %d, 1, 0, %q;"
            whole = lambda a, f=fold: [f([x <= 0 for x in a])] * 32  # noqa: E731
            found.append(Case(text, ("s32",), "u32", whole, warp=True, values=values))
            text = PART.format(f"vote.sync.{mode}.pred %q, %p, 0xFFFFF; selp.u32 %d, 1, 0, %q;")
            part = lambda a, f=fold: [f([x > 0 for x in a[:20]])] * 20 + [0] * 12  # noqa: E731
            found.append(Case(text, ("s32",), "u32", part, warp=True, values=values))
    text = "setp.gt.s32 %p, %a, 0; vote.sync.ballot.b32 %d, %p, -1;"
    found.append(Case(text, ("s32",), "u32", lambda a: [_masked([x > 0 for x in a])] * 32, warp=True))
    text = PART.format("vote.sync.ballot.b32 %d, !%p, 0xFFFFF;")
    ballot = lambda a: [_masked([x <= 0 for x in a[:20]])] * 20 + [0] * 12  # noqa: E731
    found.append(Case(text, ("s32",), "u32", ballot, warp=True))
    for kind in ("b32", "b64"):
        for values in (FEW, SAME):
            each = lambda a: [_masked([y == x for y in a]) for x in a]  # noqa: E731
            found.append(Case(f"match.any.sync.{kind} %d, %a, -1;", (kind,), "u32", each, warp=True, values=values))
            every = lambda a: [ALL if len(set(a)) == 1 else 0] * 32  # noqa: E731
            text = f"match.all.sync.{kind} %d|%p, %a, -1; @%p xor.b32 %d, %d, 6;"
            both = lambda a: [ALL ^ 6 if len(set(a)) == 1 else 0] * 32  # noqa: E731
            found.append(Case(text, (kind,), "u32", both, warp=True, values=values))
            found.append(Case(f"match.all.sync.{kind} %d, %a, -1;", (kind,), "u32", every, warp=True, values=values))
    reductions: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b,
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }
    for op, combine in reductions.items():
        for kind in ("u32", "s32") if op in ("add", "min", "max") else ("b32",):
            found.append(
                Case(f"redux.sync.{op}.{kind} %d, %a, -1;", (kind,), kind, partial(_reduced, combine, 32), warp=True)
            )
            text = PART.format(f"redux.sync.{op}.{kind} %d, %a, 0xFFFFF;")
            found.append(Case(text, (kind,), kind, partial(_reduced, combine, 20), warp=True))
    # Which lanes read a mask together is the schedule's to say; each must at least find itself there.
    active = "activemask.b32 %y; shr.u32 %y, %y, %t; and.b32 %d, %y, 1; over:"
    text = f"and.b32 %t, %row, 31; setp.eq.u32 %p, %a, 0; mov.u32 %d, 1; @%p bra over; {active}"
    found.append(Case(text, ("u32",), "u32", lambda a: 1))
    found.append(Case("activemask.b32 %d; add.u32 %d, %d, %a;", ("u32",), "u32", lambda a: ALL + a))
    # Any lane may be elected, but one of them, and all must hear the same.
    text = (
        "elect.sync %y|%p, -1; vote.sync.ballot.b32 %t, %p, -1; popc.b32 %d, %t; bfind.u32 %t, %t;"
        "sub.u32 %t, %t, %y; add.u32 %d, %d, %t;"
    )
    found.append(Case(text, ("u32",), "u32", lambda a: 1))
    text = (
        "mov.u32 %t, buffer; mad.lo.u32 %t, %row, 4, %t; st.shared.u32 [%t], %a; bar.warp.sync -1;"
        "xor.b32 %y, %row, 9; mov.u32 %t, buffer; mad.lo.u32 %t, %y, 4, %t; ld.shared.u32 %d, [%t];"
    )
    found.append(Case(text, ("u32",), "u32", lambda a: [a[k ^ 9] for k in range(32)], warp=True, declare=SHARED))
    return found


def _reduced(combine: Callable[[int, int], int], lanes: int, values: list[int]) -> list[int]:
    total = values[0]
    for value in values[1:lanes]:
        total = combine(total, value)
    return [total] * lanes + [0] * (32 - lanes)


def barriers() -> list[Case]:
    """bar and barrier among the warps of a block; fences."""
    keep = "mov.u32 %t, buffer; mad.lo.u32 %t, %row, 4, %t; st.shared.u32 [%t], %a;"
    fetch = (
        "xor.b32 %y, %row, 32; xor.b32 %y, %y, 5; mov.u32 %t, buffer; mad.lo.u32 %t, %y, 4, %t; ld.shared.u32 %y, [%t];"
    )
    # Two warps trade values; only the warp's own lane order is known to the reference, so add both and compare sums.
    trade = "add.u32 %d, %y, 0; mov.u32 %t, buffer; mad.lo.u32 %t, %row, 4, %t; {} st.shared.u32 [%t], %d; {} " + fetch
    back = "sub.u32 %d, %y, %a;"
    found = []
    for wait in (
        "bar.sync 0;",
        "barrier.sync 3, 512;",
        "barrier.sync.aligned 1;",
        "barrier.cta.sync 2;",
        "bar.cta.sync 4, 512;",
    ):
        text = keep + wait + fetch + trade.format(wait, wait) + back
        found.append(Case(text, ("u32",), "u32", lambda a: 0, declare=SHARED))
    # Odd warps fill, even warps wait for them.
    text = (
        "and.b32 %y, %row, 32; setp.eq.u32 %p, %y, 0; @%p bra taker;"
        + keep
        + "bar.arrive 1, 512; mov.u32 %d, 1; bra over;"
        "taker: bar.sync 1, 512; xor.b32 %y, %row, 32; mov.u32 %t, buffer; mad.lo.u32 %t, %y, 4, %t; ld.shared.u32 %y, [%t];"
        "setp.eq.u32 %q, %y, %y; selp.u32 %d, 1, 0, %q; over: membar.gl; fence.acq_rel.gpu; membar.cta; fence.sc.sys;"
    )
    found.append(Case(text, ("u32",), "u32", lambda a: 1, declare=SHARED))
    few = {0: (0, 1)}
    ones = {0: (1,)}
    text = "setp.ne.u32 %p, %a, 0; bar.red.popc.u32 %d, 0, %p; bar.red.popc.u32 %y, 0, !%p; add.u32 %d, %d, %y;"
    found.append(Case(text, ("u32",), "u32", lambda a: 512, values=few))
    for values, holds in ((few, 0), (ones, 1)):
        text = "setp.ne.u32 %p, %a, 0; bar.red.and.pred %q, 0, %p; selp.u32 %d, 1, 0, %q;"
        found.append(Case(text, ("u32",), "u32", lambda a, h=holds: h, values=values))
        text = "setp.ne.u32 %p, %a, 0; barrier.red.or.pred %q, 0, 512, !%p; selp.u32 %d, 1, 0, %q;"
        found.append(Case(text, ("u32",), "u32", lambda a, h=holds: 1 - h, values=values))
    text = "barrier.cluster.arrive; barrier.cluster.wait; nanosleep.u32 20; mov.u32 %d, %a;"
    found.append(Case(text, ("u32",), "u32", lambda a: a))
    return found


CALLED = """
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func free(.param .b64 pointer);
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);
.extern .func __assertfail(.param .b64 what, .param .b64 file, .param .b32 line, .param .b64 name, .param .b64 size);
.global .align 1 .b8 text[4] = {104, 105, 10, 0};
.func (.param .b32 result) triple(.param .b32 x) {
  .reg .b32 %r<2>; ld.param.b32 %r0, [x]; mul.lo.u32 %r1, %r0, 3; st.param.b32 [result], %r1; ret; }
.func (.param .b32 result) square(.param .b32 x) {
  .reg .b32 %r<2>; ld.param.b32 %r0, [x]; mul.lo.u32 %r1, %r0, %r0; st.param.b32 [result], %r1; ret; }
.func (.param .b32 result) factorial(.param .b32 x) {
  .reg .b32 %r<4>; .reg .pred %p;
  ld.param.b32 %r0, [x]; setp.lt.u32 %p, %r0, 2; mov.u32 %r2, 1; @%p bra done; sub.u32 %r1, %r0, 1;
  { .param .b32 in; .param .b32 out; st.param.b32 [in], %r1; call (out), factorial, (in); ld.param.b32 %r2, [out]; }
  mul.lo.u32 %r2, %r2, %r0;
  done: st.param.b32 [result], %r2; ret; }
.func (.param .b32 result) early(.param .b32 x) {
  .reg .b32 %r0; .reg .pred %p;
  ld.param.b32 %r0, [x]; setp.gt.u32 %p, %r0, 8; st.param.b32 [result], 1; @%p ret; st.param.b32 [result], %r0; ret; }
.func (.param .b32 result) wide(.param .align 8 .b8 many[24], .param .b32 x) {
  .reg .b64 %r<4>; .reg .b32 %s<3>;
  ld.param.b64 %r0, [many]; ld.param.b64 %r1, [many+8]; ld.param.b64 %r2, [many+16]; ld.param.b32 %s0, [x];
  xor.b64 %r0, %r0, %r1; xor.b64 %r0, %r0, %r2; cvt.u32.u64 %s1, %r0; add.u32 %s1, %s1, %s0;
  st.param.b32 [result], %s1; ret; }
.global .align 8 .u64 functions[2] = {triple, square};
"""


def _call(name: str, given: str, result: str = "%d") -> str:
    return f"{{ .param .b32 in; .param .b32 out; st.param.b32 [in], {given}; call (out), {name}, (in); ld.param.b32 {result}, [out]; }}"


def _factorial(n: int) -> int:
    return 1 if n < 2 else n * _factorial(n - 1) & ALL


def control() -> list[Case]:
    """Branches, loops, tables, calls, exits."""
    small = {0: tuple(range(12))}
    collatz = (
        "mov.u32 %d, 0; max.u32 %y, %a, 1; loop: setp.eq.u32 %p, %y, 1; @%p bra done; and.b32 %t, %y, 1;"
        "setp.eq.u32 %q, %t, 0; @%q bra even; mad.lo.u32 %y, %y, 3, 1; bra.uni next; even: shr.u32 %y, %y, 1;"
        "next: add.u32 %d, %d, 1; bra loop; done:"
    )

    def steps(n: int) -> int:
        n, count = max(n, 1), 0
        while n != 1:
            n, count = (3 * n + 1 if n & 1 else n // 2), count + 1
        return count

    table = (
        "and.b32 %y, %a, 3; ways: .branchtargets zero, one, two, three; brx.idx %y, ways;"
        "zero: mov.u32 %d, 10; bra end; one: mov.u32 %d, 21; bra end; two: mov.u32 %d, 32; bra end;"
        "three: mov.u32 %d, 43; end: add.u32 %d, %d, %y;"
    )
    # Two scopes with a label of one name, and parameters of one name and different sizes: as inline assembly makes them.
    scopes = (
        "{ .reg .pred %p; setp.gt.u32 %p, %a, 3; @%p bra SKIP; add.u32 %d, %d, 1; SKIP: }"
        "{ .reg .pred %p; setp.gt.u32 %p, %a, 6; @%p bra SKIP; add.u32 %d, %d, 16; SKIP: }"
    )
    sizes = (
        "{ .param .align 8 .b8 in[24]; .param .b32 in2; .param .b32 out; cvt.u64.u32 %z, %a; st.param.b64 [in], %z;"
        "st.param.b64 [in+8], 5; st.param.b64 [in+16], 48; st.param.b32 [in2], %row; call (out), wide, (in, in2);"
        f"ld.param.b32 %d, [out]; }} sub.u32 %d, %d, %row; {_call('triple', '%d')}"
    )
    return [
        Case(collatz, ("u32",), "u32", steps, values={0: tuple(range(40))}),
        Case(table, ("u32",), "u32", lambda a: 10 + 12 * (a & 3)),
        Case(scopes, ("u32",), "u32", lambda a: (a <= 3) + 16 * (a <= 6), values=small),
        Case(sizes, ("u32",), "u32", lambda a: 3 * (a ^ 5 ^ 48), module=CALLED),
        Case(_call("triple", "%a"), ("u32",), "u32", lambda a: 3 * a, module=CALLED),
        Case(_call("factorial", "%a"), ("u32",), "u32", _factorial, module=CALLED, values=small),
        Case(_call("early", "%a"), ("u32",), "u32", lambda a: 1 if a > 8 else a, module=CALLED, values=small),
        Case(
            "setp.gt.u32 %p, %a, 5; @%p bra other; "
            + _call("square", "%a")
            + " bra over; other: "
            + _call("triple", "%a")
            + " over:",
            ("u32",),
            "u32",
            lambda a: 3 * a if a > 5 else a * a,
            module=CALLED,
            values=small,
        ),
        Case(
            "and.b32 %y, %a, 1; mov.u64 %w, functions; mad.wide.u32 %w, %y, 8, %w; ld.global.u64 %z, [%w];"
            "{ .param .b32 in; .param .b32 out; st.param.b32 [in], %a;"
            "shape: .callprototype (.param .b32 _) _ (.param .b32 _); call (out), %z, (in), shape; ld.param.b32 %d, [out]; }",
            ("u32",),
            "u32",
            lambda a: a * a if a & 1 else 3 * a,
            module=CALLED,
        ),
        Case(
            "{ .param .b64 in; .param .b64 out; st.param.b64 [in], 64; call (out), malloc, (in); ld.param.b64 %w, [out]; }"
            "setp.ne.u64 %p, %w, 0; @%p st.u32 [%w+60], %a; mov.u32 %d, %a; @%p ld.u32 %d, [%w+60];"
            "{ .param .b64 in; st.param.b64 [in], %w; call free, (in); }",
            ("u32",),
            "u32",
            lambda a: a,
            module=CALLED,
        ),
        # Named, but not reached: what prints, asserts or traps is tested where its effect can be seen.
        Case(
            "setp.gt.u32 %p, %a, 100; @!%p bra over; { .param .b64 f; .param .b64 v; .param .b32 out; st.param.b64 [f], 0;"
            "st.param.b64 [v], 0; call (out), vprintf, (f, v); } { .param .b64 a1; .param .b64 a2; .param .b32 a3;"
            ".param .b64 a4; .param .b64 a5; st.param.b64 [a1], 0; st.param.b64 [a2], 0; st.param.b32 [a3], 0;"
            "st.param.b64 [a4], 0; st.param.b64 [a5], 1; call __assertfail, (a1, a2, a3, a4, a5); } trap; brkpt;"
            "over: mov.u32 %d, 4;",
            ("u32",),
            "u32",
            lambda a: 4,
            module=CALLED,
            values=small,
        ),
        Case(
            "setp.gt.u32 %p, %a, 5; mov.u64 %w, 0; ld.param.u64 %at, [p1]; mad.wide.u32 %at, %row, 4, %at;"
            "st.global.u32 [%at], 9; @%p exit; mov.u32 %d, %a;",
            ("u32",),
            "u32",
            lambda a: 9 if a > 5 else a,
            values=small,
        ),
    ]


def registers() -> list[Case]:
    """Special registers, by what must hold of them."""
    lane = "and.b32 %t, %row, 31;"
    masks: dict[str, str] = {
        "lanemask_eq": "shl.b32 %y, 1, %t;",
        "lanemask_lt": "shl.b32 %y, 1, %t; sub.u32 %y, %y, 1;",
        "lanemask_le": "shl.b32 %y, 2, %t; sub.u32 %y, %y, 1;",
        "lanemask_gt": "shl.b32 %y, 0xFFFFFFFE, %t;",
        "lanemask_ge": "shl.b32 %y, 0xFFFFFFFF, %t;",
        "laneid": "mov.u32 %y, %t;",
        "tid.x": "mov.u32 %y, %row;",
        "tid.y": "mov.u32 %y, 0;",
        "ntid.x": "mov.u32 %y, 512;",
        "ntid.z": "mov.u32 %y, 1;",
        "ctaid.x": "mov.u32 %y, 0;",
        "ctaid.z": "mov.u32 %y, 0;",
        "nctaid.y": "mov.u32 %y, 1;",
        "dynamic_smem_size": "mov.u32 %y, 0;",
        "cluster_ctarank": "mov.u32 %y, 0;",
        "cluster_nctarank": "mov.u32 %y, 1;",
        "cluster_ctaid.x": "mov.u32 %y, 0;",
        "clusterid.x": "mov.u32 %y, 0;",
        "nclusterid.x": "mov.u32 %y, 1;",
    }
    found = []
    for name, compute in masks.items():
        text = f"{lane}{compute} mov.u32 %d, %{name}; sub.u32 %d, %d, %y; add.u32 %d, %d, %a;"
        found.append(Case(text, ("u32",), "u32", lambda a: a))
    found += [
        Case("mov.u16 %d, %tid.x; cvt.u16.u32 %x, %row; sub.u16 %d, %d, %x;", ("u32",), "u16", lambda a: 0),
        Case(
            "mov.u32 %y, %smid; mov.u32 %t, %nsmid; setp.lt.u32 %p, %y, %t; selp.u32 %d, 1, 0, %p;",
            ("u32",),
            "u32",
            lambda a: 1,
        ),
        Case(
            "mov.u64 %z, %clock64; mov.u64 %w, %clock64; setp.ge.u64 %p, %w, %z; selp.u32 %d, 1, 0, %p;",
            ("u32",),
            "u32",
            lambda a: 1,
        ),
        Case(
            "mov.u64 %z, %globaltimer; mov.u64 %w, %globaltimer; setp.ge.u64 %p, %w, %z; selp.u32 %d, 1, 0, %p;",
            ("u32",),
            "u32",
            lambda a: 1,
        ),
        Case("mov.u32 %y, %nwarpid; setp.ge.u32 %p, %y, 16; selp.u32 %d, 1, 0, %p;", ("u32",), "u32", lambda a: 1),
        # Where a warp is resident is the device's to say: not its place in the block.
        Case(
            "mov.u32 %y, %warpid; mov.u32 %t, %nwarpid; setp.lt.u32 %p, %y, %t; selp.u32 %d, 1, 0, %p;",
            ("u32",),
            "u32",
            lambda a: 1,
        ),
        Case("mov.u32 %y, WARP_SZ; add.u32 %d, %y, %a;", ("u32",), "u32", lambda a: a + 32),
    ]
    return found


def hints() -> list[Case]:
    """Instructions that promise or prefetch and change no value."""
    keep = ".global .align 16 .b8 scratch[16384];"
    mine = "mov.u64 %w, scratch; mad.wide.u32 %w, %row, 32, %w; cvta.global.u64 %z, %w;"
    texts = [
        f"{mine} prefetch.global.L2 [%w]; prefetchu.L1 [%z];",
        f"{mine} createpolicy.fractional.L2::evict_last.b64 %z1, 1.0; st.global.L2::cache_hint.u32 [%w], %a, %z1;"
        "ld.global.L2::cache_hint.u32 %a, [%w], %z1;",
        "mov.u64 %w, scratch; applypriority.global.L2::evict_normal [%w], 128;",
        "griddepcontrol.wait; griddepcontrol.launch_dependents;",
        "fence.proxy.async; fence.mbarrier_init.release.cluster; membar.sys;",
        "pmevent 3;",
    ]
    found = [Case(f"{text} mov.u32 %d, %a;", ("u32",), "u32", lambda a: a, module=keep) for text in texts]
    discard = ".global .align 128 .b8 line[65536];"
    text = "mov.u64 %w, line; mad.wide.u32 %w, %row, 128, %w; discard.global.L2 [%w], 128; mov.u32 %d, %a;"
    return [*found, Case(text, ("u32",), "u32", lambda a: a, module=discard)]


def cases() -> list[Case]:
    """Every case of this file."""
    return [*shuffles(), *votes(), *barriers(), *control(), *registers(), *hints()]
