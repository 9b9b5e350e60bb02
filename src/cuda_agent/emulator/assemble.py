"""Turns parsed PTX into the core's instructions.

Every PTX instruction becomes one or a few of the core's operations, found by name; what has no operation makes the
function unsupported, with the instruction's name and source line. Nothing is guessed: a modifier that is not
known makes the instruction unsupported too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from cuda_agent.emulator.ptx import (
    TYPE_BITS,
    Address,
    Function,
    Group,
    Immediate,
    Module,
    Operand,
    Pair,
    Place,
    Register,
    Statement,
    Symbol,
    Variable,
    shown_path,
)

SHARED_TAG, LOCAL_TAG, FUNCTION_TAG = 1 << 62, 1 << 61, 1 << 60
LANES = 32
ROUNDING = {"rn": 0, "rz": 1, "rm": 2, "rp": 3}
TO_INTEGRAL = {"rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
FTZ, SAT, RELU, NAN, FINITE = 1, 2, 4, 8, 16
BUILTINS = {"vprintf": "vprintf", "__assertfail": "assertfail", "malloc": "malloc", "free": "free"}
# Modifiers of loads and stores that change caching, ordering or scope but not the value.
MEMORY_HINTS = frozenset(
    [
        "weak",
        "volatile",
        "relaxed",
        "acquire",
        "release",
        "acq_rel",
        "sc",
        "mmio",
        "cta",
        "cluster",
        "gpu",
        "sys",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
        "nc",
        "unified",
        "evict_first",
        "evict_last",
        "evict_normal",
        "evict_unchanged",
        "no_allocate",
    ]
)
SPECIAL = {
    "tid": 0,
    "ntid": 1,
    "ctaid": 2,
    "nctaid": 3,
    "laneid": 4,
    "warpid": 5,
    "nwarpid": 6,
    "lanemask_eq": 7,
    "lanemask_le": 8,
    "lanemask_lt": 9,
    "lanemask_ge": 10,
    "lanemask_gt": 11,
    "smid": 12,
    "nsmid": 13,
    "gridid": 14,
    "dynamic_smem_size": 15,
    "total_smem_size": 16,
    "aggr_smem_size": 16,
    "clock": 17,
    "clock_hi": 20,
    "clock64": 17,
    "globaltimer": 17,
    "globaltimer_lo": 17,
    "cluster_nctaid": 19,
    "nclusterid": 3,
    "clusterid": 2,
    "cluster_ctaid": 20,
    "cluster_ctarank": 20,
    "cluster_nctarank": 19,
}
DYNAMIC_BASE = 22
MMA_TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "f32": 5, "s32": 6, "f64": 7}


class Unsupported(Exception):
    """The emulated device lacks this instruction; the text names it."""


@dataclass(frozen=True)
class Slot:
    """A place in the frame: a vector of 32 lanes, in the register or the constant region."""

    offset: int
    constant: bool = False


Number = Slot | int


@dataclass
class Code:
    """One instruction for the core."""

    op: int
    operands: list[Number]
    guard: Slot | None = None
    negated: bool = False
    immediates: tuple[int, int] = (0, 0)
    place: Place = field(default_factory=lambda: Place("", 0))
    label: str = ""
    """Branch target, resolved to operand 0 when the function is complete."""


@dataclass(frozen=True)
class Call:
    """One call site: a function's name, or how else it is called, and (slot, bytes) of arguments and results."""

    target: str
    arguments: tuple[tuple[Slot, int], ...]
    results: tuple[tuple[Slot, int], ...]


@dataclass
class Assembled:
    """One function, ready for the core."""

    name: str
    is_kernel: bool
    code: list[Code]
    constants: bytes
    frame_bytes: int
    local_bytes: int
    parameters: list[tuple[int, int]]
    """(offset, size) of each kernel parameter."""
    parameter_bytes: int
    parameter_slots: list[tuple[Slot, int]]
    return_slots: list[tuple[Slot, int]]
    calls: list[Call]
    lists: list[list[Number | str]]
    """Branch targets as labels, or registers."""
    labels: dict[str, int]
    unsupported: str
    most_threads: int
    """Threads a block may have, 0 where the function does not say."""


@dataclass
class Surroundings:
    """What a function refers to outside itself."""

    operation: Callable[[str], int]
    """Name to the core's number, -1 when there is none."""
    variables: dict[str, int]
    """Addresses of global and constant variables."""
    functions: dict[str, int]
    """Ids of functions with a body."""
    shared: dict[str, int]
    """Offsets of static shared variables."""
    extern_shared: frozenset[str]


def used_symbols(function: Function) -> set[str]:
    """Return every symbol a function's instructions name."""
    found: set[str] = set()

    def visit(operand: Operand) -> None:
        if isinstance(operand, Symbol):
            found.add(operand.name)
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
            found.add(operand.base.name)
        elif isinstance(operand, Group):
            for item in operand.items:
                visit(item)

    for statement in function.statements:
        for operand in statement.operands:
            visit(operand)
    return found


def shared_variables(module: Module) -> dict[str, Variable]:
    """Return all shared variables of a module, wherever they are declared."""
    declared = [v for v in module.variables if v.space == "shared"]
    for function in module.functions:
        declared += [v for v in function.variables if v.space == "shared"]
    return {v.name: v for v in declared}


def layout(variables: list[Variable], start: int) -> tuple[dict[str, int], int]:
    """Place variables one after another from `start`; return their offsets and the end."""
    offsets = {}
    for variable in variables:
        start = -(-start // variable.align) * variable.align
        offsets[variable.name] = start
        start += variable.size
    return offsets, start


class Assembler:
    """Assembles one function."""

    def __init__(self, function: Function, around: Surroundings) -> None:
        self._f = function
        self._around = around
        self._registers: dict[str, tuple[Slot, int]] = {}
        self._frame = 0
        self._constants = bytearray()
        self._known_constants: dict[tuple[int, int], Slot] = {}
        self._code: list[Code] = []
        self._calls: list[Call] = []
        self._lists: list[list[Number | str]] = []
        self._slots: dict[str, tuple[Slot, int]] = {}
        self._statement = Statement(None, "", (), Place("", 0), "")
        self._guard: Slot | None = None
        self._carry: Slot | None = None

    def assemble(self) -> Assembled:
        """Return the function for the core; `unsupported` says what it lacks, if anything."""
        f = self._f
        for name, kind in f.registers.items():
            bits = TYPE_BITS.get(kind, 32)
            self._registers[name] = (self._allocate(bits), bits)
        local = [v for v in f.variables if v.space == "local"]
        self._local, local_bytes = layout(local, 0)
        parameters, parameter_bytes = layout(f.parameters, 0)
        self._parameters = parameters if f.is_kernel else {}
        in_frame = [v for v in f.variables if v.space == "param"]
        if not f.is_kernel:
            in_frame += f.parameters + f.returns
        for variable in in_frame:
            size = max(variable.size, 4)
            self._slots[variable.name] = (self._allocate_bytes(size * LANES), size)
        unsupported = ""
        if f.cluster_blocks > 1:
            unsupported = "a kernel with thread block clusters: not supported on the emulated device"
        starts = []
        for statement in f.statements:
            starts.append(len(self._code))
            self._statement = statement
            self._guard = None
            try:
                if statement.guard is not None:
                    self._guard = self._slot(statement.guard)
                self._lower(statement)
            except Unsupported as error:
                where = (
                    f"{shown_path(statement.place.file)}:{statement.place.line}"
                    if statement.place.line
                    else "an unknown line"
                )
                unsupported = unsupported or f"{error} (at {where}): not supported on the emulated device"
                self._guard = None
                self._emit("unsupported")
        starts.append(len(self._code))
        self._guard = None
        self._emit("exit" if f.is_kernel else "ret")
        labels = {name: starts[at] for name, at in f.labels.items()}
        return Assembled(
            name=f.name,
            is_kernel=f.is_kernel,
            code=self._code,
            constants=bytes(self._constants),
            frame_bytes=self._frame + len(self._constants) + 64,
            local_bytes=local_bytes,
            parameters=[(parameters[v.name], v.size) for v in f.parameters] if f.is_kernel else [],
            parameter_bytes=parameter_bytes if f.is_kernel else 0,
            parameter_slots=[self._slots[v.name] for v in f.parameters] if not f.is_kernel else [],
            return_slots=[self._slots[v.name] for v in f.returns] if not f.is_kernel else [],
            calls=self._calls,
            lists=self._lists,
            labels=labels,
            unsupported=unsupported,
            most_threads=f.most_threads,
        )

    # The frame

    def _allocate_bytes(self, size: int) -> Slot:
        slot = Slot(self._frame)
        self._frame += -(-size // 64) * 64
        return slot

    def _allocate(self, bits: int) -> Slot:
        if bits == 1:
            slot = Slot(self._frame)
            self._frame += 64  # keeps the vectors after it aligned
            return slot
        return self._allocate_bytes(max(bits, 16) // 8 * LANES)

    def _temporary(self, bits: int) -> Slot:
        return self._allocate(bits)

    def _constant(self, value: int, bits: int) -> Slot:
        bits = max(bits, 16)
        key = (value & ((1 << bits) - 1), bits)
        if key not in self._known_constants:
            self._known_constants[key] = Slot(len(self._constants), constant=True)
            self._constants += key[0].to_bytes(bits // 8, "little") * LANES
        return self._known_constants[key]

    # Operands

    def _bits(self, operand: Operand) -> int:
        if isinstance(operand, Register) and operand.name in self._registers:
            return self._registers[operand.name][1]
        raise Unsupported(f"{self._statement.opcode} with operand {operand}")

    def _slot(self, operand: Operand) -> Slot:
        """Return the slot of a declared register."""
        if isinstance(operand, Register) and operand.name in self._registers:
            return self._registers[operand.name][0]
        raise Unsupported(f"{self._statement.opcode} with operand {operand}")

    def _value(self, operand: Operand, bits: int, kind: str = "") -> Slot:
        """Return a slot that holds the operand as `bits` wide; literals become constants."""
        if isinstance(operand, Immediate):
            value = operand.value
            if operand.float_bits:
                value = _float_literal(value, operand.float_bits, kind or f"f{bits}")
            elif kind in ("f32", "f64"):
                value = _float_bits(float(value), bits)
            return self._constant(value, bits)
        if isinstance(operand, Symbol):
            return self._address_of(operand, bits)
        if isinstance(operand, Register) and operand.name not in self._registers:
            slot = self._temporary(bits)
            self._special(operand.name, slot, bits)
            return slot
        if isinstance(operand, Group):
            slot = self._temporary(bits)
            self._pack(slot, bits, operand)
            return slot
        actual = self._bits(operand)
        if actual == 1:
            raise Unsupported(f"{self._statement.opcode} with a predicate as a number")
        if actual == bits or (actual == 16 and bits == 8):
            return self._slot(operand)
        slot = self._temporary(bits)
        self._emit(f"ext.u{min(max(bits, 16), actual)}.r{actual}.r{max(bits, 16)}", slot, self._slot(operand))
        return slot

    def _address_of(self, symbol: Symbol, bits: int) -> Slot:
        """Return a slot with a variable's address (in its own state space) or a function's."""
        name = symbol.name
        if name in self._around.shared:
            return self._constant(self._around.shared[name] + symbol.offset, bits)
        if name in self._around.extern_shared:
            slot = self._temporary(bits)
            self._emit(f"special.r{bits}", slot, immediates=(DYNAMIC_BASE, 0))
            if symbol.offset:
                self._emit(f"add.b{bits}", slot, slot, self._constant(symbol.offset, bits))
            return slot
        if name in self._local:
            slot = self._temporary(bits)
            op = "address.local" if bits == 64 else "address.local32"
            self._emit(op, slot, immediates=(self._local[name] + symbol.offset, 0))
            return slot
        if name in self._parameters:
            slot = self._temporary(64)
            self._emit("address.param", slot, immediates=(self._parameters[name] + symbol.offset, 0))
            return slot
        if name in self._around.variables:
            return self._constant(self._around.variables[name] + symbol.offset, 64)
        if name in self._around.functions:
            return self._constant(FUNCTION_TAG | self._around.functions[name], 64)
        if name == "WARP_SZ":
            return self._constant(32, bits)
        raise Unsupported(f"{self._statement.opcode} with the symbol {name}")

    def _target(self, operand: Operand, bits: int) -> tuple[Slot, int]:
        """Return a destination's slot and width; the sink `_` gets a temporary."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return self._temporary(bits), bits
        return self._slot(operand), self._bits(operand)

    # Emission

    def _emit(self, name: str, *operands: Number, immediates: tuple[int, int] = (0, 0), label: str = "") -> None:
        op = self._around.operation(name)
        if op < 0:
            raise Unsupported(f"{self._statement.opcode}")
        guard = self._statement.guard
        self._code.append(
            Code(
                op,
                list(operands),
                self._guard,
                bool(guard and guard.negated and self._guard is not None),
                immediates,
                self._statement.place,
                label,
            )
        )

    def _lower(self, statement: Statement) -> None:
        base, *modifiers = statement.opcode.split(".")
        handler = HANDLERS.get(base)
        if handler is None:
            raise Unsupported(statement.opcode)
        handler(self, modifiers, list(statement.operands))

    def _type(self, modifiers: list[str]) -> str:
        for word in reversed(modifiers):
            if word in TYPE_BITS:
                return word
        raise Unsupported(self._statement.opcode)

    def _only(self, modifiers: list[str], *allowed: str) -> None:
        """Refuse modifiers that are not known here."""
        for word in modifiers:
            if word not in allowed and word not in TYPE_BITS:
                raise Unsupported(self._statement.opcode)

    # Arithmetic

    def _arithmetic(self, op: str, modifiers: list[str], operands: list[Operand], count: int) -> None:
        kind = self._type(modifiers)
        if len(operands) != count + 1:
            raise Unsupported(self._statement.opcode)
        bits = TYPE_BITS[kind]
        destination, width = self._target(operands[0], bits)
        sources = [self._value(o, bits, kind) for o in operands[1:]]
        flags = (
            (FTZ if "ftz" in modifiers else 0)
            | (SAT if "sat" in modifiers else 0)
            | (RELU if "relu" in modifiers else 0)
            | (NAN if "NaN" in modifiers else 0)
        )
        if kind in ("f16", "bf16", "f16x2", "bf16x2"):
            self._only(modifiers, "rn", "ftz", "sat", "relu", "NaN", "approx")
            self._emit(f"{op}.{kind}", destination, *sources, immediates=(flags, 0))
            return
        if kind in ("f32", "f64"):
            self._only(modifiers, "rn", "rz", "rm", "rp", "ftz", "sat", "NaN", "approx", "full")
            rounding = next((ROUNDING[m] for m in modifiers if m in ROUNDING), 0)
            if rounding:
                self._emit(f"{op}.directed.{kind}", destination, *sources, immediates=(rounding, flags & (FTZ | SAT)))
                return
            name = op + (".nan" if flags & NAN else "") + (".ftz" if flags & FTZ else "")
            name += ".sat" if flags & SAT else ""
            self._emit(f"{name}.{kind}", destination, *sources)
            return
        relu = bool(flags & RELU) and op in ("min", "max") and kind in ("s32", "s16x2")
        self._only(modifiers, "sat", *(["relu"] if relu else []))
        if kind in ("u16x2", "s16x2"):
            name = "add.u16x2" if op == "add" else f"{op}.{kind}"
        elif flags & SAT:
            name = f"{op}.sat.{kind}"
        elif op in ("add", "sub"):
            name = f"{op}.b{bits}"
        else:
            name = f"{op}.{kind.replace('b', 'u')}"
        self._emit(name, destination, *sources)
        if relu:
            self._emit(f"max.{kind}", destination, destination, self._constant(0, 32))
        if width != bits:
            raise Unsupported(self._statement.opcode)

    def _carried(self, op: str, modifiers: list[str], operands: list[Operand], carry_in: bool) -> None:
        kind = self._type(modifiers)
        bits = TYPE_BITS[kind]
        if self._carry is None:
            self._carry = self._allocate(1)
        destination, _ = self._target(operands[0], bits)
        sources: list[Number] = [self._value(o, bits, kind) for o in operands[1:]]
        sources += [-1] * (3 - len(sources))
        flags = (1 if carry_in else 0) | (2 if "cc" in modifiers else 0)
        self._emit(f"{op}.carry.b{bits}", destination, *sources, self._carry, immediates=(flags, 0))

    def _add(self, modifiers: list[str], operands: list[Operand]) -> None:
        if "cc" in modifiers:
            self._carried("add", modifiers, operands, False)
        else:
            self._arithmetic("add", modifiers, operands, 2)

    def _sub(self, modifiers: list[str], operands: list[Operand]) -> None:
        if "cc" in modifiers:
            self._carried("sub", modifiers, operands, False)
        else:
            self._arithmetic("sub", modifiers, operands, 2)

    def _addc(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._carried("add", modifiers, operands, True)

    def _subc(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._carried("sub", modifiers, operands, True)

    def _mul(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        if kind in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64"):
            self._arithmetic("mul", modifiers, operands, 2)
            return
        bits = TYPE_BITS[kind]
        a, b = (self._value(o, bits, kind) for o in operands[1:])
        self._only(modifiers, "lo", "hi", "wide")
        if "wide" in modifiers:
            destination, _ = self._target(operands[0], 2 * bits)
            self._emit(f"mul.wide.{kind.replace('b', 'u')}", destination, a, b)
            return
        destination, _ = self._target(operands[0], bits)
        name = f"mul.hi.{kind.replace('b', 'u')}" if "hi" in modifiers else f"mul.lo.b{bits}"
        self._emit(name, destination, a, b)

    def _mad(self, modifiers: list[str], operands: list[Operand], carry_in: bool = False) -> None:
        kind = self._type(modifiers)
        if kind in ("f32", "f64"):
            self._arithmetic("fma", modifiers, operands, 3)
            return
        if "cc" in modifiers or carry_in:
            half = "hi" if "hi" in modifiers else "lo"
            if half == "hi" and kind.startswith("s"):
                raise Unsupported(self._statement.opcode)
            self._carried(f"mad.{half}", modifiers, operands, carry_in)
            return
        self._only(modifiers, "lo", "hi", "wide")
        bits = TYPE_BITS[kind]
        wide = "wide" in modifiers
        a, b = (self._value(o, bits, kind) for o in operands[1:3])
        c = self._value(operands[3], 2 * bits if wide else bits, kind)
        destination, _ = self._target(operands[0], 2 * bits if wide else bits)
        unsigned = kind.replace("b", "u")
        name = f"mad.wide.{unsigned}" if wide else f"mad.hi.{unsigned}" if "hi" in modifiers else f"mad.lo.b{bits}"
        self._emit(name, destination, a, b, c)

    def _madc(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._mad(modifiers, operands, carry_in=True)

    def _mul24(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        half = ("hi" if "hi" in modifiers else "lo") + (".sat" if "sat" in modifiers else "")
        self._only(modifiers, "lo", "hi", "sat")
        destination, _ = self._target(operands[0], 32)
        self._emit(f"{op}.{half}.{kind}", destination, *(self._value(o, 32) for o in operands[1:]))

    def _bitwise(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        if kind == "pred":
            a = self._slot(operands[1])
            second = operands[2] if len(operands) > 2 else None
            b = self._predicate_value(second) if second is not None else -1
            negate = (1 if isinstance(operands[1], Register) and operands[1].negated else 0) | (
                2 if isinstance(second, Register) and second.negated else 0
            )
            self._emit(f"{op}.pred", self._slot(operands[0]), a, b, immediates=(negate, 0))
            return
        bits = TYPE_BITS[kind]
        destination, _ = self._target(operands[0], bits)
        self._emit(f"{op}.b{bits}", destination, *(self._value(o, bits, kind) for o in operands[1:]))

    def _predicate_value(self, operand: Operand) -> Slot:
        if isinstance(operand, Immediate):
            slot = self._allocate(1)
            always = self._constant(1 if operand.value else 0, 32)
            self._emit("setp.ne.u32", slot, -1, always, self._constant(0, 32), -1)
            return slot
        return self._slot(operand)

    def _shift(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        bits = TYPE_BITS[kind]
        destination, _ = self._target(operands[0], bits)
        name = f"shl.b{bits}" if op == "shl" else f"shr.{kind.replace('b', 'u')}"
        self._emit(name, destination, self._value(operands[1], bits), self._value(operands[2], 32))

    def _shf(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._only(modifiers, "l", "r", "wrap", "clamp")
        destination, _ = self._target(operands[0], 32)
        mode = "wrap" if "wrap" in modifiers else "clamp"
        side = "l" if "l" in modifiers else "r"
        self._emit(f"shf.{side}.{mode}.b32", destination, *(self._value(o, 32) for o in operands[1:4]))

    def _lop3(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._only(modifiers)
        if len(operands) != 5 or not isinstance(operands[4], Immediate):
            raise Unsupported(self._statement.opcode)
        destination, _ = self._target(operands[0], 32)
        values = (self._value(o, 32) for o in operands[1:4])
        self._emit("lop3.b32", destination, *values, immediates=(operands[4].value, 0))

    def _prmt(self, modifiers: list[str], operands: list[Operand]) -> None:
        modes = {"f4e": 1, "b4e": 2, "rc8": 3, "ecl": 4, "ecr": 5, "rc16": 6}
        self._only(modifiers, *modes)
        mode = next((modes[m] for m in modifiers if m in modes), 0)
        destination, _ = self._target(operands[0], 32)
        self._emit("prmt.b32", destination, *(self._value(o, 32) for o in operands[1:4]), immediates=(mode, 0))

    def _count_bits(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        bits = TYPE_BITS[self._type(modifiers)]
        destination, _ = self._target(operands[0], bits if op == "brev" else 32)
        self._emit(f"{op}.b{bits}", destination, self._value(operands[1], bits))

    def _bfind(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        destination, _ = self._target(operands[0], 32)
        name = "bfind.shiftamt." if "shiftamt" in modifiers else "bfind."
        self._emit(name + kind, destination, self._value(operands[1], TYPE_BITS[kind]))

    def _masks(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        mode = next((m for m in modifiers if m in ("clamp", "wrap")), "")
        self._only(modifiers, "clamp", "wrap")
        destination, _ = self._target(operands[0], 32)
        name = f"{op}.{mode}.{kind}" if mode else f"{op}.{kind}"
        self._emit(name, destination, *(self._value(o, 32) for o in operands[1:]))

    def _bfe(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        bits = TYPE_BITS[kind]
        destination, _ = self._target(operands[0], bits)
        a, b, c = self._value(operands[1], bits), self._value(operands[2], 32), self._value(operands[3], 32)
        self._emit(f"bfe.{kind}", destination, a, b, c)

    def _bfi(self, modifiers: list[str], operands: list[Operand]) -> None:
        bits = TYPE_BITS[self._type(modifiers)]
        destination, _ = self._target(operands[0], bits)
        a, b = self._value(operands[1], bits), self._value(operands[2], bits)
        self._emit(f"bfi.b{bits}", destination, a, b, self._value(operands[3], 32), self._value(operands[4], 32))

    def _dp(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        kinds = [m for m in modifiers if m in ("s32", "u32")]
        signs = (1 if kinds[0] == "s32" else 0) | (2 if kinds[1] == "s32" else 0)
        part = 0 if op == "dp4a" else 2 if "hi" in modifiers else 1
        destination, _ = self._target(operands[0], 32)
        self._emit("dp", destination, *(self._value(o, 32) for o in operands[1:4]), immediates=(signs, part))

    # Comparison and selection

    def _flushed(self, slot: Slot) -> Slot:
        flushed = self._temporary(32)
        self._emit("mul.ftz.f32", flushed, slot, self._constant(_float_bits(1.0, 32), 32))
        return flushed

    def _setp(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        comparison = _comparison(modifiers)
        booleans = {"and": 1, "or": 2, "xor": 3}
        boolean = next((booleans[m] for m in modifiers if m in booleans), 0)
        self._only(modifiers, *COMPARISONS, "lo", "ls", "hi", "hs", "ftz", *booleans)
        results = operands[0]
        first, second = (results.first, results.second) if isinstance(results, Pair) else (results, None)
        p: Number = -1 if isinstance(first, Symbol) else self._slot(first)
        q: Number = -1 if second is None or isinstance(second, Symbol) else self._slot(second)
        extra: Number = -1
        negated = 0
        if len(operands) > 3:
            extra = self._predicate_value(operands[3])
            negated = int(isinstance(operands[3], Register) and operands[3].negated)
        self._compare(kind, comparison, p, q, operands[1], operands[2], extra, boolean, negated, "ftz" in modifiers)

    def _compare(
        self,
        kind: str,
        comparison: str,
        p: Number,
        q: Number,
        left: Operand,
        right: Operand,
        extra: Number = -1,
        boolean: int = 0,
        negated: int = 0,
        ftz: bool = False,
    ) -> None:
        bits = TYPE_BITS[kind]
        a, b = self._value(left, bits, kind), self._value(right, bits, kind)
        if ftz and kind == "f32":
            a, b = self._flushed(a), self._flushed(b)
        if kind in ("f16", "bf16", "f16x2", "bf16x2"):
            number = COMPARISONS.index(comparison)
            self._emit(f"setp.{kind}", p, q, a, b, extra, number, FTZ if ftz else 0, immediates=(boolean, negated))
            return
        name = kind.replace("b", "u") if kind[0] == "b" else kind
        self._emit(f"setp.{comparison}.{name}", p, q, a, b, extra, immediates=(boolean, negated))

    def _set(self, modifiers: list[str], operands: list[Operand]) -> None:
        kinds = [m for m in modifiers if m in TYPE_BITS]
        booleans = {"and": 1, "or": 2, "xor": 3}
        boolean = next((booleans[m] for m in modifiers if m in booleans), 0)
        self._only(modifiers, *COMPARISONS, "lo", "ls", "hi", "hs", "ftz", *booleans)
        ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, **dict.fromkeys(("u32", "s32"), 0xFFFFFFFF)}
        ones |= dict.fromkeys(("u16", "s16"), 0xFFFF)
        comparison, ftz = _comparison(modifiers), "ftz" in modifiers
        if len(kinds) != 2 or len(operands) != (4 if boolean else 3):
            raise Unsupported(self._statement.opcode)
        result, source = kinds
        if source in ("f16x2", "bf16x2") and not boolean:
            one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)
            values = (self._value(o, 32, source) for o in operands[1:])
            destination, _ = self._target(operands[0], 32)
            number = COMPARISONS.index(comparison)
            self._emit(f"set.{source}", destination, *values, number, FTZ if ftz else 0, immediates=(one, 0))
            return
        if result not in ones:
            raise Unsupported(self._statement.opcode)
        p = self._allocate(1)
        extra: Number = self._predicate_value(operands[3]) if boolean else -1
        negated = int(boolean > 0 and isinstance(operands[3], Register) and operands[3].negated)
        self._compare(source, comparison, p, -1, operands[1], operands[2], extra, boolean, negated, ftz)
        destination, bits = self._target(operands[0], TYPE_BITS[result])
        self._emit(f"selp.b{bits}", destination, self._constant(ones[result], bits), self._constant(0, bits), p)

    def _selp(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        bits = TYPE_BITS[kind]
        destination, _ = self._target(operands[0], bits)
        a, b = self._value(operands[1], bits, kind), self._value(operands[2], bits, kind)
        negated = int(isinstance(operands[3], Register) and operands[3].negated)
        self._emit(f"selp.b{bits}", destination, a, b, self._predicate_value(operands[3]), immediates=(negated, 0))

    def _slct(self, modifiers: list[str], operands: list[Operand]) -> None:
        kinds = [m for m in modifiers if m in TYPE_BITS]
        bits = TYPE_BITS[kinds[0]]
        destination, _ = self._target(operands[0], bits)
        self._only(modifiers, "ftz")
        a, b = (self._value(o, bits, kinds[0]) for o in operands[1:3])
        chooser = self._value(operands[3], 32, kinds[1])
        if "ftz" in modifiers:
            chooser = self._flushed(chooser)
        self._emit(f"slct.b{bits}.{kinds[1]}", destination, a, b, chooser)

    def _testp(self, modifiers: list[str], operands: list[Operand]) -> None:
        names = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        kind = self._type(modifiers)
        which = next(i for i, name in enumerate(names) if name in modifiers)
        self._emit(
            f"testp.{kind}",
            self._slot(operands[0]),
            self._value(operands[1], TYPE_BITS[kind], kind),
            immediates=(which, 0),
        )

    # Moves, addresses and conversions

    def _mov(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        bits = TYPE_BITS[kind]
        target, source = operands
        if kind == "pred":
            value = self._predicate_value(source)
            negated = int(isinstance(source, Register) and source.negated)
            self._emit("mov.pred", self._slot(target), value, -1, immediates=(negated, 0))
            return
        if isinstance(target, Group):
            self._unpack(target, bits, self._value(source, bits, kind))
            return
        destination, width = self._target(target, bits)
        if isinstance(source, Group):
            self._pack(destination, bits, source)
            return
        if isinstance(source, Register) and source.name not in self._registers:
            self._special(source.name, destination, width)
            return
        self._emit(f"mov.b{width}", destination, self._value(source, width, kind))

    def _pack(self, destination: Slot, bits: int, group: Group) -> None:
        part = bits // len(group.items)
        if part < 16:
            raise Unsupported(self._statement.opcode)
        self._emit(f"pack.b{bits}.b{part}", destination, *(self._value(o, part) for o in group.items))

    def _unpack(self, group: Group, bits: int, source: Slot) -> None:
        part = bits // len(group.items)
        if part < 16:
            raise Unsupported(self._statement.opcode)
        targets: list[Number] = [-1 if isinstance(o, Symbol) else self._slot(o) for o in group.items]
        targets += [-1] * (8 - len(targets))
        self._emit(f"unpack.b{bits}.b{part}", *targets, source)

    def _special(self, name: str, destination: Slot, bits: int) -> None:
        word, _, axis = name[1:].partition(".")
        part = "xyzw".index(axis) if axis else 0
        if part == 3:  # the fourth component of a grid's vectors is zero, or one for sizes
            word, part = ("cluster_nctaid" if word.startswith("n") else "cluster_ctaid"), 0
        if word.startswith("envreg"):
            which, part = 18, int(word[6:])
        elif word in SPECIAL:
            which = SPECIAL[word]
            if word.startswith("globaltimer"):
                part = 2
        else:
            raise Unsupported(f"special register {name}")
        self._emit(f"special.r{bits}", destination, immediates=(which, part))

    def _cvta(self, modifiers: list[str], operands: list[Operand]) -> None:
        tags = {"shared": SHARED_TAG, "local": LOCAL_TAG}
        words = [m.split("::")[0] for m in modifiers]
        space = next((w for w in words if w in ("shared", "local", "global", "const", "param")), "")
        destination, width = self._target(operands[0], 64)
        if width != 64 or not space:
            raise Unsupported(self._statement.opcode)
        source = self._value(operands[1], 64)
        if "to" in words:
            self._emit("untag.r64", destination, source)
            return
        self._emit("tag.r64", destination, source, immediates=(tags.get(space, 0), 0))

    def _isspacep(self, modifiers: list[str], operands: list[Operand]) -> None:
        spaces = {"global": 0, "shared": 1, "local": 2, "const": 3, "param": 3}
        word = modifiers[0].split("::")[0]
        if word not in spaces:
            raise Unsupported(self._statement.opcode)
        source = self._value(operands[1], 64)
        self._emit("isspacep", self._slot(operands[0]), source, immediates=(spaces[word], 0))

    def _cvt(self, modifiers: list[str], operands: list[Operand]) -> None:
        kinds = [m for m in modifiers if m in TYPE_BITS]
        if "pack" in modifiers:
            self._pack_integers(modifiers, kinds, operands)
            return
        if len(kinds) != 2:
            raise Unsupported(self._statement.opcode)
        self._only(modifiers, *ROUNDING, *TO_INTEGRAL, "rna", "ftz", "sat", "relu", "satfinite")
        to, source = kinds
        flags = (
            (FTZ if "ftz" in modifiers else 0)
            | (SAT if "sat" in modifiers else 0)
            | (RELU if "relu" in modifiers else 0)
            | (FINITE if "satfinite" in modifiers else 0)
        )
        rounding = next((ROUNDING[m] for m in modifiers if m in ROUNDING), 0)
        if to == "tf32":
            if flags & FINITE:
                raise Unsupported(self._statement.opcode)
            mode = 4 if "rna" in modifiers else rounding
            destination, _ = self._target(operands[0], 32)
            self._emit("f2tf32", destination, self._value(operands[1], 32, "f32"), immediates=(mode, flags))
        elif to in ("f16x2", "bf16x2") and source == "f32":
            destination, _ = self._target(operands[0], 32)
            a, b = (self._value(o, 32, "f32") for o in operands[1:3])
            self._emit(f"pack.{to}.f32", destination, a, b, immediates=(rounding, flags))
        elif "x2" in to or "x2" in source:
            bits = TYPE_BITS[source]
            destination, _ = self._target(operands[0], TYPE_BITS[to])
            values = (self._value(o, bits, source) for o in operands[1:])
            self._emit(f"cvt.{to}.{source}", destination, *values, immediates=(rounding, flags))
        elif _is_float(to) and _is_float(source):
            destination, _ = self._target(operands[0], TYPE_BITS[to])
            value = self._value(operands[1], TYPE_BITS[source], source)
            integral = next((TO_INTEGRAL[m] for m in modifiers if m in TO_INTEGRAL), None)
            if integral is None:
                self._emit(f"f2f.{source}.{to}", destination, value, immediates=(rounding, flags))
            elif to == source:
                self._emit(f"round.{source}", destination, value, immediates=(integral, flags))
            else:
                raise Unsupported(self._statement.opcode)
        elif _is_float(source):
            self._float_to_integer(source, to, modifiers, operands, flags)
        elif _is_float(to):
            wide = source if TYPE_BITS[source] >= 32 else f"{source[0]}32"
            value = self._widened(operands[1], source, wide)
            destination, _ = self._target(operands[0], TYPE_BITS[to])
            self._emit(f"i2f.{wide.replace('b', 'u')}.{to}", destination, value, immediates=(rounding, 0))
            if flags & SAT:
                self._emit(f"f2f.{to}.{to}", destination, destination, immediates=(0, SAT))
        else:
            self._integer_to_integer(source, to, "sat" in modifiers, operands)

    def _pack_integers(self, modifiers: list[str], kinds: list[str], operands: list[Operand]) -> None:
        """Saturate two integers into the low parts of a register, above what a third operand brings."""
        self._only(modifiers, "pack", "sat")
        bits = TYPE_BITS[kinds[0]]
        if bits not in (8, 16) or kinds[1] != "s32" or len(operands) != (4 if bits == 8 else 3):
            raise Unsupported(self._statement.opcode)
        low, top = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kinds[0][0] == "s" else (0, (1 << bits) - 1)
        total: Number = self._constant(0, 32)
        if bits == 8:
            total = self._temporary(32)
            self._emit("shl.b32", total, self._value(operands[3], 32), self._constant(16, 32))
        for shift, operand in ((bits, operands[1]), (0, operands[2])):
            part, whole = self._temporary(32), self._temporary(32)
            self._emit("max.s32", part, self._value(operand, 32), self._constant(low, 32))
            self._emit("min.s32", part, part, self._constant(top, 32))
            place = (self._constant(shift, 32), self._constant(bits, 32))
            self._emit("bfi.b32", whole, part, total, *place)
            total = whole
        self._emit("mov.b32", self._target(operands[0], 32)[0], total)

    def _float_to_integer(
        self, source: str, to: str, modifiers: list[str], operands: list[Operand], flags: int
    ) -> None:
        integral = next((TO_INTEGRAL[m] for m in modifiers if m in TO_INTEGRAL), 1)
        value = self._value(operands[1], TYPE_BITS[source], source)
        bits = TYPE_BITS[to]
        result = to.replace("b", "u") if bits >= 32 else f"{to[0].replace('b', 'u')}32"
        destination, width = self._target(operands[0], bits)
        immediates = (integral, flags & FTZ)
        if width == TYPE_BITS[result]:
            self._emit(f"f2i.{source}.{result}", destination, value, bits, immediates=immediates)
        else:
            wide = self._temporary(TYPE_BITS[result])
            self._emit(f"f2i.{source}.{result}", wide, value, bits, immediates=immediates)
            self._emit(f"ext.{to.replace('b', 'u')}.r{TYPE_BITS[result]}.r{width}", destination, wide)

    def _widened(self, operand: Operand, kind: str, wide: str) -> Slot:
        """Return an integer of type `kind` as type `wide`, reading only the low bits of its register."""
        if isinstance(operand, Immediate):
            return self._constant(operand.value, TYPE_BITS[wide])
        slot, bits = self._slot(operand), self._bits(operand)
        if bits == TYPE_BITS[kind] == TYPE_BITS[wide]:
            return slot
        result = self._temporary(TYPE_BITS[wide])
        self._emit(f"ext.{kind.replace('b', 'u')}.r{bits}.r{TYPE_BITS[wide]}", result, slot)
        return result

    def _integer_to_integer(self, source: str, to: str, saturate: bool, operands: list[Operand]) -> None:
        destination, width = self._target(operands[0], TYPE_BITS[to])
        source, to = source.replace("b", "u"), to.replace("b", "u")
        low = "u64" if to == "s64" else to  # the core widens 64-bit values by their bits
        if saturate:
            wide = self._widened(operands[1], "u64" if source == "s64" else source, f"{source[0]}64")
            bits = TYPE_BITS[to]
            clamped = self._temporary(64)
            top = (1 << (bits - 1)) - 1 if to[0] == "s" else (1 << bits) - 1
            bottom = -(1 << (bits - 1)) if to[0] == "s" else 0
            if source[0] == "u":
                self._emit("clamp.u64", clamped, wide, immediates=(0, _signed(top)))
            else:
                self._emit("clamp.s64", clamped, wide, immediates=(bottom, min(top, (1 << 63) - 1)))
            self._emit(f"ext.{low}.r64.r{width}", destination, clamped)
            return
        if TYPE_BITS[to] <= TYPE_BITS[source]:
            value = operands[1]
            bits = self._bits(value) if isinstance(value, Register) else max(TYPE_BITS[source], 16)
            slot = self._slot(value) if isinstance(value, Register) else self._value(value, bits)
            self._emit(f"ext.{low}.r{bits}.r{width}", destination, slot)
            return
        wide = self._widened(operands[1], source, f"{source[0]}64")
        self._emit(f"ext.{low}.r64.r{width}", destination, wide)

    # Memory

    def _access(self, modifiers: list[str]) -> tuple[str, str, int]:
        """Return state space, type and vector length of a load or store."""
        space, vector = "generic", 1
        kind = self._type(modifiers)
        for word in modifiers:
            name = word.split("::")[0]
            if name in ("param", "global", "shared", "local", "const"):
                space = name
            elif word in ("v2", "v4", "v8"):
                vector = int(word[1])
            elif name not in MEMORY_HINTS and name not in ("L1", "L2") and word not in TYPE_BITS:
                raise Unsupported(self._statement.opcode)
        if space == "shared" and "shared::cluster" in modifiers:
            raise Unsupported(self._statement.opcode)
        return space, kind, vector

    def _memory_operand(self, space: str, address: Operand) -> tuple[str, list[Number], int]:
        """Return the operation's space part, operands 8 and 9, and the displacement."""
        if not isinstance(address, Address):
            raise Unsupported(self._statement.opcode)
        base, offset = address.base, address.offset
        if isinstance(base, Symbol):
            if space == "param" and base.name in self._parameters:
                return "param", [-1, 0], self._parameters[base.name] + offset
            if space == "param" and base.name in self._slots:
                slot, size = self._slots[base.name]
                return "slot", [slot, size], offset
            if space == "shared" and base.name in self._around.shared:
                return "shared.a32", [-1, 0], self._around.shared[base.name] + offset
            if space == "local" and base.name in self._local:
                return "local.a64", [-1, 0], self._local[base.name] + offset
            return self._space_part(space, 64), [self._address_of(Symbol(base.name), 64), 0], offset
        if base is None:
            if space == "shared":
                return "shared.a32", [-1, 0], offset
            return self._space_part(space, 64), [self._constant(0, 64), 0], offset
        bits = self._bits(base)
        if bits == 32 and space not in ("shared", "local"):
            return self._space_part(space, 64), [self._value(base, 64), 0], offset
        return self._space_part(space, bits), [self._slot(base), 0], offset

    @staticmethod
    def _space_part(space: str, bits: int) -> str:
        return f"{space}.a{bits}" if space in ("shared", "local") else "global"

    def _ld(self, modifiers: list[str], operands: list[Operand]) -> None:
        space, kind, vector = self._access(modifiers)
        targets = operands[0].items if isinstance(operands[0], Group) else (operands[0],)
        part, where, displacement = self._memory_operand(space, operands[1])
        memory_bits = TYPE_BITS[kind]
        if memory_bits > 64 or len(targets) != vector:
            raise Unsupported(self._statement.opcode)
        widths = {self._bits(t) for t in targets if isinstance(t, Register)} or {max(memory_bits, 16)}
        if len(widths) != 1:
            raise Unsupported(self._statement.opcode)
        width = widths.pop()
        signed = kind[0] == "s" and width > memory_bits
        memory = f"{'s' if signed else 'u'}{memory_bits}"
        results: list[Number] = [-1 if isinstance(t, Symbol) else self._slot(t) for t in targets]
        results += [-1] * (8 - len(results))
        self._emit(f"ld.{part}.{memory}.r{width}.v{vector}", *results, *where, immediates=(displacement, 0))

    def _st(self, modifiers: list[str], operands: list[Operand]) -> None:
        space, kind, vector = self._access(modifiers)
        sources = operands[1].items if isinstance(operands[1], Group) else (operands[1],)
        part, where, displacement = self._memory_operand(space, operands[0])
        memory_bits = TYPE_BITS[kind]
        if memory_bits > 64 or len(sources) != vector or part == "param":
            raise Unsupported(self._statement.opcode)
        widths = {self._bits(s) for s in sources if isinstance(s, Register) and s.name in self._registers}
        width = max(widths, default=max(memory_bits, 16))
        values: list[Number] = [self._value(s, width, kind) for s in sources]
        values += [-1] * (8 - len(values))
        self._emit(f"st.{part}.u{memory_bits}.r{width}.v{vector}", *values, *where, immediates=(displacement, 0))

    def _atom(self, modifiers: list[str], operands: list[Operand], returns: bool = True) -> None:
        kind = self._type(modifiers)
        names = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
        op = next((m for m in modifiers if m in names), "")
        space = "global"
        for word in modifiers:
            name = word.split("::")[0]
            if name in ("global", "shared"):
                space = name
            elif (
                name not in MEMORY_HINTS
                and name not in ("noftz", "L2", "v2", "v4", "v8")
                and word not in TYPE_BITS
                and word != op
            ):
                raise Unsupported(self._statement.opcode)
        if not op or "shared::cluster" in modifiers:
            raise Unsupported(self._statement.opcode)
        bits = TYPE_BITS[kind]
        results: list[Operand] = []
        if returns:
            results = list(operands[0].items) if isinstance(operands[0], Group) else [operands[0]]
            operands = operands[1:]
        part, where, displacement = self._memory_operand(space, operands[0])
        name = f"atom.{part}.{op}.{kind.replace('b', 'u') if kind[0] == 'b' and kind[1:].isdigit() else kind}"
        groups = [list(o.items) if isinstance(o, Group) else [o] for o in operands[1 : 3 if op == "cas" else 2]]
        if len({len(group) for group in [*groups, results or groups[0]]}) != 1:
            raise Unsupported(self._statement.opcode)
        # A vector is as atomic as its elements, each for itself.
        for number, sources in enumerate(zip(*groups)):
            values = [self._value(o, bits, kind) for o in sources]
            result: Number = self._target(results[number], bits)[0] if results else -1
            self._emit(name, result, where[0], *values, immediates=(displacement + number * bits // 8, 0))

    def _red(self, modifiers: list[str], operands: list[Operand]) -> None:
        if "async" in modifiers:
            raise Unsupported(self._statement.opcode)
        self._atom(modifiers, operands, returns=False)

    def _cp(self, modifiers: list[str], operands: list[Operand]) -> None:
        if modifiers[0] != "async":
            raise Unsupported(self._statement.opcode)
        if "bulk" in modifiers:
            self._bulk(modifiers, operands)
            return
        if "mbarrier" in modifiers:
            # The thread's copies are finished here, and the barrier is told so: with noinc that is one of the
            # arrivals it expects, without it one more, which changes nothing.
            self._emit("cp.async.wait", immediates=(-1, 0))
            if "noinc" in modifiers:
                self._mbarrier(["arrive", *(m for m in modifiers if m.startswith("shared"))], operands)
            return
        if modifiers[1] == "commit_group":
            self._emit("cp.async.commit")
            return
        if modifiers[1] in ("wait_group", "wait_all"):
            keep = operands[0].value if operands and isinstance(operands[0], Immediate) else -1
            self._emit("cp.async.wait", immediates=(keep, 0))
            return
        to, source, size = operands[:3]
        if not (isinstance(to, Address) and isinstance(source, Address) and isinstance(size, Immediate)):
            raise Unsupported(self._statement.opcode)
        filled: Number = -1
        if len(operands) > (4 if "cache_hint" in self._statement.opcode else 3):
            if isinstance(operands[3], Register) and self._bits(operands[3]) == 1:
                raise Unsupported(self._statement.opcode)
            filled = self._value(operands[3], 32)
        part, where, displacement = self._memory_operand("shared", to)
        if where[0] == -1:
            where = [self._constant(0, 32), 0]
        _, from_where, from_displacement = self._memory_operand("global", source)
        self._emit(
            f"cp.async.{part.removeprefix('shared.')}",
            where[0],
            from_where[0],
            filled,
            from_displacement,
            immediates=(size.value, displacement),
        )

    def _bulk(self, modifiers: list[str], operands: list[Operand]) -> None:
        """Copies of whole pieces by the copy engine; tensors, reductions and several blocks are not supported."""
        hint = ["L2::cache_hint"]
        if any(m in modifiers for m in ("commit_group", "wait_group")) or modifiers[2] == "prefetch":
            self._emit("nop")
            return
        incoming = ["mbarrier::complete_tx::bytes", *hint]
        if modifiers[2:4] in (["shared::cluster", "global"], ["shared::cta", "global"]):
            self._only(modifiers[4:], *incoming)
            there, out, barrier = 1, 0, self._whole_address(operands[3], 32)
        elif modifiers[2:4] == ["global", "shared::cta"]:
            self._only(modifiers[4:], "bulk_group", *hint)
            there, out, barrier = 0, 1, -1
        else:
            raise Unsupported(self._statement.opcode)
        shared, place = self._whole_address(operands[1 - there], 32), self._whole_address(operands[there], 64)
        self._emit("cp.async.bulk", shared, place, self._value(operands[2], 32), barrier, out)

    def _whole_address(self, operand: Operand, bits: int) -> Number:
        """Return a slot with base and displacement added, as a shared (32) or global (64) address."""
        if not isinstance(operand, Address) or operand.base is None:
            raise Unsupported(self._statement.opcode)
        base = self._value(operand.base, bits)
        if not operand.offset:
            return base
        slot = self._temporary(bits)
        self._emit(f"add.b{bits}", slot, base, self._constant(operand.offset, bits))
        return slot

    # Control

    def _bra(self, modifiers: list[str], operands: list[Operand]) -> None:
        target = operands[0]
        if not isinstance(target, Symbol):
            raise Unsupported(self._statement.opcode)
        self._emit("bra", 0, label=target.name)

    def _brx(self, modifiers: list[str], operands: list[Operand]) -> None:
        table = operands[1]
        if not isinstance(table, Symbol) or table.name not in self._f.branch_targets:
            raise Unsupported(self._statement.opcode)
        self._lists.append(list(self._f.branch_targets[table.name]))
        self._emit("brx", self._value(operands[0], 32), len(self._lists) - 1)

    def _call(self, modifiers: list[str], operands: list[Operand]) -> None:
        results: tuple[tuple[Slot, int], ...] = ()
        if isinstance(operands[0], Group):
            results = self._parameter_slots(operands[0])
            operands = operands[1:]
        target = operands[0]
        arguments: tuple[tuple[Slot, int], ...] = ()
        if len(operands) > 1 and isinstance(operands[1], Group):
            arguments = self._parameter_slots(operands[1])
        if isinstance(target, Register):
            self._calls.append(Call("", arguments, results))
            self._emit("call.indirect", len(self._calls) - 1, self._slot(target))
            return
        name = target.name if isinstance(target, Symbol) else ""
        if name in BUILTINS:
            self._calls.append(Call(f"builtin {name}", arguments, results))
            self._emit(f"call.{BUILTINS[name]}", len(self._calls) - 1)
        elif name in self._around.functions:
            self._calls.append(Call(name, arguments, results))
            self._emit("call", len(self._calls) - 1)
        else:
            raise Unsupported(f"call of {name}")

    def _parameter_slots(self, group: Group) -> tuple[tuple[Slot, int], ...]:
        slots = []
        for item in group.items:
            if not isinstance(item, Symbol) or item.name not in self._slots:
                raise Unsupported(f"{self._statement.opcode} with a register as parameter")
            slots.append(self._slots[item.name])
        return tuple(slots)

    def _plain(self, op: str) -> None:
        self._emit(op)

    def _bar(self, modifiers: list[str], operands: list[Operand]) -> None:
        words = [m for m in modifiers if m not in ("cta", "aligned") and m not in TYPE_BITS]
        if words[:1] == ["warp"]:
            self._emit("bar.warp.sync", self._value(operands[0], 32), immediates=(0, 1))
            return
        if words[:1] == ["cluster"]:
            # A cluster of one block: its barrier is the block's.
            if words[1] == "wait":
                self._emit("bar.sync", self._constant(0, 32), -1, -1, -1)
            return
        if words[:1] == ["red"]:
            kinds = {"popc": 1, "and": 2, "or": 3}
            result, barrier, *rest = operands
            predicate = rest[-1]
            count: Number = self._value(rest[0], 32) if len(rest) > 1 else -1
            negated = int(isinstance(predicate, Register) and predicate.negated)
            self._emit(
                "bar.sync",
                self._value(barrier, 32),
                count,
                self._slot(result),
                self._predicate_value(predicate),
                immediates=(negated, kinds[words[1]]),
            )
            return
        number = self._value(operands[0], 32) if operands else self._constant(0, 32)
        threads: Number = self._value(operands[1], 32) if len(operands) > 1 else -1
        if words[:1] == ["arrive"]:
            self._emit("bar.arrive", number, threads)
        elif not words or words[0] == "sync":
            self._emit("bar.sync", number, threads, -1, -1)
        else:
            raise Unsupported(self._statement.opcode)

    # Lanes

    def _shfl(self, modifiers: list[str], operands: list[Operand]) -> None:
        mode = next((m for m in modifiers if m in ("up", "down", "bfly", "idx")), "")
        if "sync" not in modifiers or not mode:
            raise Unsupported(self._statement.opcode)
        result = operands[0]
        predicate: Number = -1
        if isinstance(result, Pair):
            predicate = -1 if isinstance(result.second, Symbol) else self._slot(result.second)
            result = result.first
        destination, _ = self._target(result, 32)
        self._emit(f"shfl.{mode}", destination, predicate, *(self._value(o, 32) for o in operands[1:5]))

    def _vote(self, modifiers: list[str], operands: list[Operand]) -> None:
        mode = next((m for m in modifiers if m in ("all", "any", "uni", "ballot")), "")
        if "sync" not in modifiers or not mode:
            raise Unsupported(self._statement.opcode)
        negated = int(isinstance(operands[1], Register) and operands[1].negated)
        predicate = self._predicate_value(operands[1])
        members = self._value(operands[2], 32)
        self._emit(f"vote.{mode}", self._slot(operands[0]), predicate, members, immediates=(negated, 0))

    def _match(self, modifiers: list[str], operands: list[Operand]) -> None:
        bits = TYPE_BITS[self._type(modifiers)]
        result = operands[0]
        predicate: Number = -1
        if isinstance(result, Pair):
            predicate = -1 if isinstance(result.second, Symbol) else self._slot(result.second)
            result = result.first
        destination, _ = self._target(result, 32)
        self._emit(
            f"match.b{bits}",
            destination,
            predicate,
            self._value(operands[1], bits),
            self._value(operands[2], 32),
            immediates=(int("all" in modifiers), 0),
        )

    def _redux(self, modifiers: list[str], operands: list[Operand]) -> None:
        kind = self._type(modifiers)
        names = ("add", "min", "max", "and", "or", "xor")
        op = next((i for i, name in enumerate(names) if name in modifiers), -1)
        if op < 0 or kind not in ("u32", "s32", "b32"):
            raise Unsupported(self._statement.opcode)
        destination, _ = self._target(operands[0], 32)
        value, members = self._value(operands[1], 32), self._value(operands[2], 32)
        self._emit(f"redux.{kind.replace('b', 'u')}", destination, value, members, immediates=(op, 0))

    def _elect(self, modifiers: list[str], operands: list[Operand]) -> None:
        pair = operands[0]
        if not isinstance(pair, Pair):
            raise Unsupported(self._statement.opcode)
        lane: Number = -1 if isinstance(pair.first, Symbol) else self._slot(pair.first)
        self._emit("elect", lane, self._slot(pair.second), self._value(operands[1], 32))

    def _activemask(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._emit("activemask", self._slot(operands[0]))

    def _nothing(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._emit("nop")

    def _createpolicy(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._emit("mov.b64", self._slot(operands[0]), self._constant(0, 64))

    def _mbarrier(self, modifiers: list[str], operands: list[Operand]) -> None:
        action = modifiers[0]
        if "shared::cluster" in modifiers:
            raise Unsupported(self._statement.opcode)
        if action in ("expect_tx", "complete_tx"):
            operands = [Symbol("_"), *operands]
        index = 0 if action in ("init", "inval") else 1
        if action.startswith("arrive") and isinstance(operands[0], Address):
            operands = [Symbol("_"), *operands]
        if action == "inval":
            self._emit("nop")
            return
        part, where, displacement = self._memory_operand("shared", operands[index])
        bits = 64 if part.endswith("64") else 32
        immediates = (displacement, bits)
        if action == "init":
            self._emit("mbarrier.init", where[0], self._value(operands[1], 32), immediates=immediates)
        elif action in ("arrive", "arrive_drop"):
            state: Number = -1 if isinstance(operands[0], Symbol) else self._slot(operands[0])
            number: Number = self._value(operands[2], 32) if len(operands) > 2 else -1
            count, coming = (-1, number) if "expect_tx" in modifiers else (number, -1)
            drop = int(action == "arrive_drop")
            self._emit("mbarrier.arrive", state, where[0], count, drop, coming, immediates=immediates)
        elif action in ("expect_tx", "complete_tx"):
            bytes_ = self._value(operands[2], 32)
            self._emit("mbarrier.bytes", -1, where[0], bytes_, int(action == "expect_tx"), immediates=immediates)
        elif action in ("test_wait", "try_wait"):
            parity = int("parity" in modifiers)
            asked = self._value(operands[2], 32 if parity else 64)
            self._emit("mbarrier.test", self._slot(operands[0]), where[0], asked, parity, immediates=immediates)
        else:
            raise Unsupported(self._statement.opcode)

    # Tensor cores

    def _registers_of(self, operand: Operand) -> list[Slot]:
        items = operand.items if isinstance(operand, Group) else (operand,)
        return [self._slot(item) if isinstance(item, Register) else self._value(item, 32) for item in items]

    def _mma(self, modifiers: list[str], operands: list[Operand]) -> None:
        shape = next((m for m in modifiers if m.startswith("m") and "n" in m and "k" in m), "")
        kinds = [m for m in modifiers if m in TYPE_BITS]
        numbers = [int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split()]
        known = {
            "m16n8k16": ("f16", "bf16", "s8", "u8"),
            "m16n8k8": ("f16", "bf16", "tf32"),
            "m16n8k4": ("tf32",),
            "m16n8k32": ("s8", "u8"),
            "m8n8k4": ("f64",),
        }
        allowed = (shape, "sync", "aligned", "row", "col", "satfinite")
        self._only(modifiers, *allowed)
        layouts = [m for m in modifiers if m in ("row", "col")]
        if len(kinds) != 4 or kinds[1] not in known.get(shape, ()) or layouts != ["row", "col"]:
            raise Unsupported(self._statement.opcode)
        if (kinds[1] in ("s8", "u8")) != (kinds[2] in ("s8", "u8")) or ("satfinite" in modifiers and kinds[0] != "s32"):
            raise Unsupported(self._statement.opcode)
        registers = [self._registers_of(o) for o in operands[:4]]
        self._lists.append([slot for group in registers for slot in group])
        d, a, b = (len(group) for group in registers[:3])
        kd, ka, kb, kc = (MMA_TYPES[k] for k in kinds)
        types = ka | kb << 4 | kc << 8 | kd << 12 | numbers[2] << 16 | numbers[0] << 24
        self._emit("mma", len(self._lists) - 1, a, b, d, immediates=(types, int("satfinite" in modifiers)))

    def _wmma(self, modifiers: list[str], operands: list[Operand]) -> None:
        action = modifiers[0]
        shape = next((m for m in modifiers if m.startswith("m") and "n" in m and "k" in m), "")
        m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
        kinds = [w for w in modifiers if w in MMA_TYPES]
        if action == "mma":
            d, a, b, c = (self._registers_of(o) for o in operands[:4])
            if len(kinds) == 2:  # f16 products: only the types of D and C are written
                kinds = [kinds[0], "f16", "f16", kinds[1]]
            if len(kinds) != 4 or ("satfinite" in modifiers and kinds[0] != "s32"):
                raise Unsupported(self._statement.opcode)
            self._lists.append([*d, *a, *b, *c])
            kd, ka, kb, kc = (MMA_TYPES[w] for w in kinds)
            # A and B are loaded by their own layout, so row and col no longer matter here.
            self._emit(
                "wmma.mma",
                len(self._lists) - 1,
                len(d),
                len(a),
                len(b),
                len(c),
                m,
                n,
                k,
                immediates=(ka | kb << 4 | kc << 8 | kd << 12, int("satfinite" in modifiers)),
            )
            return
        which = {"a": 0, "b": 1, "c": 2, "d": 2}[modifiers[1]]
        column = int("col" in modifiers)
        space = next((w.split("::")[0] for w in modifiers if w.split("::")[0] in ("global", "shared")), "generic")
        registers, address = (operands[0], operands[1]) if action == "load" else (operands[1], operands[0])
        stride: Number = self._value(operands[2], 32) if len(operands) > 2 else -1
        part, where, displacement = self._memory_operand(space, address)
        bits = {"shared.a32": 32, "shared.a64": 64}.get(part, 0)
        if where[0] == -1:
            where = [self._constant(0, 32), 0]
        self._lists.append(list(self._registers_of(registers)))
        self._emit(
            f"wmma.{action}",
            len(self._lists) - 1,
            where[0],
            stride,
            MMA_TYPES[kinds[-1]],
            m,
            n,
            k,
            column,
            bits,
            immediates=(displacement, which),
        )

    def _matrix_rows(self, op: str, modifiers: list[str], operands: list[Operand]) -> None:
        self._only(modifiers, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
        registers, address = (operands[0], operands[1]) if op == "ldmatrix" else (operands[1], operands[0])
        slots: list[Number] = list(self._registers_of(registers))
        count = len(slots)
        part, where, displacement = self._memory_operand("shared", address)
        if where[0] == -1:
            where = [self._constant(0, 32), 0]
        bits = 64 if part.endswith("64") else 32
        self._emit(
            op,
            *slots,
            *([-1] * (4 - count)),
            count,
            where[0],
            int("trans" in modifiers),
            bits,
            immediates=(displacement, 0),
        )

    def _movmatrix(self, modifiers: list[str], operands: list[Operand]) -> None:
        self._emit("movmatrix", self._slot(operands[0]), self._slot(operands[1]))


def _comparison(modifiers: list[str]) -> str:
    unsigned = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    for word in modifiers:
        if word in COMPARISONS:
            return word
        if word in unsigned:
            return unsigned[word]
    raise Unsupported("a comparison without its kind")


def _is_float(kind: str) -> bool:
    return kind in ("f16", "bf16", "f32", "f64")


def _float_bits(value: float, bits: int) -> int:
    return int.from_bytes(struct.pack("<d" if bits == 64 else "<f", value), "little")


def _float_literal(value: int, literal_bits: int, kind: str) -> int:
    """Return a float literal's bits in the operand's own type."""
    if kind in ("f64", "b64", "u64", "s64") and literal_bits == 32:
        return _float_bits(struct.unpack("<f", value.to_bytes(4, "little"))[0], 64)
    if kind not in ("f64", "b64", "u64", "s64") and literal_bits == 64:
        return _float_bits(struct.unpack("<d", value.to_bytes(8, "little"))[0], 32)
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


Handler = Callable[[Assembler, list[str], list[Operand]], None]


def _named(method: Callable[..., None], op: str) -> Handler:
    return lambda assembler, modifiers, operands: method(assembler, op, modifiers, operands)


def _arithmetic_of(op: str, count: int) -> Handler:
    return lambda assembler, modifiers, operands: assembler._arithmetic(op, modifiers, operands, count)


def _plain_of(op: str) -> Handler:
    return lambda assembler, modifiers, operands: assembler._plain(op)


HANDLERS: dict[str, Handler] = {
    "add": Assembler._add,
    "sub": Assembler._sub,
    "addc": Assembler._addc,
    "subc": Assembler._subc,
    "mul": Assembler._mul,
    "mad": Assembler._mad,
    "madc": Assembler._madc,
    "fma": _arithmetic_of("fma", 3),
    **{op: _arithmetic_of(op, 2) for op in ("div", "rem", "min", "max", "copysign")},
    **{op: _arithmetic_of(op, 1) for op in ("abs", "neg", "sqrt", "rcp", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")},
    "sad": _arithmetic_of("sad", 3),
    "mul24": _named(Assembler._mul24, "mul24"),
    "mad24": _named(Assembler._mul24, "mad24"),
    **{op: _named(Assembler._bitwise, op) for op in ("and", "or", "xor", "not", "cnot")},
    "shl": _named(Assembler._shift, "shl"),
    "shr": _named(Assembler._shift, "shr"),
    "shf": Assembler._shf,
    "lop3": Assembler._lop3,
    "prmt": Assembler._prmt,
    **{op: _named(Assembler._count_bits, op) for op in ("clz", "popc", "brev")},
    "bfind": Assembler._bfind,
    **{op: _named(Assembler._masks, op) for op in ("bmsk", "szext", "fns")},
    "bfe": Assembler._bfe,
    "bfi": Assembler._bfi,
    "dp4a": _named(Assembler._dp, "dp4a"),
    "dp2a": _named(Assembler._dp, "dp2a"),
    "setp": Assembler._setp,
    "set": Assembler._set,
    "selp": Assembler._selp,
    "slct": Assembler._slct,
    "testp": Assembler._testp,
    "mov": Assembler._mov,
    "cvta": Assembler._cvta,
    "isspacep": Assembler._isspacep,
    "cvt": Assembler._cvt,
    "ld": Assembler._ld,
    "ldu": Assembler._ld,
    "st": Assembler._st,
    "atom": Assembler._atom,
    "red": Assembler._red,
    "cp": Assembler._cp,
    "bra": Assembler._bra,
    "brx": Assembler._brx,
    "call": Assembler._call,
    "ret": _plain_of("ret"),
    "exit": _plain_of("exit"),
    "trap": _plain_of("trap"),
    "brkpt": _plain_of("nop"),
    "nanosleep": _plain_of("yield"),
    "bar": Assembler._bar,
    "barrier": Assembler._bar,
    **dict.fromkeys(
        ("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority", "pmevent", "griddepcontrol"),
        Assembler._nothing,
    ),
    "createpolicy": Assembler._createpolicy,
    "shfl": Assembler._shfl,
    "vote": Assembler._vote,
    "match": Assembler._match,
    "redux": Assembler._redux,
    "elect": Assembler._elect,
    "activemask": Assembler._activemask,
    "mbarrier": Assembler._mbarrier,
    "mma": Assembler._mma,
    "wmma": Assembler._wmma,
    "ldmatrix": _named(Assembler._matrix_rows, "ldmatrix"),
    "stmatrix": _named(Assembler._matrix_rows, "stmatrix"),
    "movmatrix": Assembler._movmatrix,
}
