"""Loads PTX into the core and launches its kernels."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda_agent.emulator import ptx
from cuda_agent.emulator.assemble import (
    FUNCTION_TAG,
    Assembled,
    Assembler,
    Call,
    Number,
    Slot,
    Surroundings,
    layout,
    shared_variables,
    used_symbols,
)
from cuda_agent.emulator.build import core_library

_INSTRUCTION = struct.Struct("<5i16i4x2q")


class _Parameters(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("offset", ctypes.c_uint32 * 512),
        ("size", ctypes.c_uint32 * 512),
    ]


class _Fault(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("block", ctypes.c_int32 * 3),
        ("thread", ctypes.c_int32 * 3),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint32),
        ("kernel", ctypes.c_char * 256),
        ("file", ctypes.c_char * 512),
        ("message", ctypes.c_char * 1536),
    ]


FAULT_KINDS = {
    1: "out of bounds (global)",
    2: "out of bounds (shared)",
    3: "out of bounds (local)",
    4: "misaligned",
    5: "read-only",
    6: "deadlock",
    7: "timeout",
    8: "unsupported",
    9: "assert",
    10: "trap",
    11: "illegal",
}


@dataclass(frozen=True)
class Fault:
    """What stopped a kernel."""

    kind: str
    message: str
    kernel: str
    file: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


class LaunchFault(RuntimeError):
    """A kernel launched through `launch` faulted; `fault` has the details."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@cache
def core() -> ctypes.CDLL:
    """Return the core, loaded into this process with its functions typed."""
    library = ctypes.CDLL(str(core_library()), mode=ctypes.RTLD_LOCAL)
    c = ctypes
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ca_op": (c.c_int, [c.c_char_p]),
        "ca_op_count": (c.c_int, []),
        "ca_op_name": (c.c_char_p, [c.c_int]),
        "ca_module_new": (c.c_void_p, []),
        "ca_module_free": (None, [c.c_void_p]),
        "ca_module_file": (c.c_int, [c.c_void_p, c.c_char_p]),
        "ca_module_variable": (
            c.c_uint64,
            [c.c_void_p, c.c_char_p, c.c_void_p, c.c_uint64, c.c_uint64, c.c_int],
        ),
        "ca_module_function": (
            c.c_int,
            [c.c_void_p, c.c_char_p, c.c_int, c.c_char_p, c.c_uint32, c.c_char_p]
            + [c.c_uint32] * 4
            + [c.POINTER(_Parameters), c.c_void_p, c.c_uint32, c.c_uint32, c.c_char_p],
        ),
        "ca_module_call": (None, [c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_uint32, c.c_uint32]),
        "ca_module_limit_threads": (None, [c.c_void_p, c.c_int, c.c_uint32]),
        "ca_module_list": (None, [c.c_void_p, c.c_int, c.c_void_p, c.c_uint32]),
        "ca_module_find_kernel": (c.c_int, [c.c_void_p, c.c_char_p]),
        "ca_kernel_unsupported": (c.c_char_p, [c.c_void_p, c.c_int]),
        "ca_launch": (
            c.c_int,
            [c.c_void_p, c.c_int, c.c_void_p, c.c_void_p, c.c_char_p, c.c_uint32, c.c_int],
        ),
        "ca_range_add": (None, [c.c_char_p, c.c_void_p, c.c_uint64, c.c_int]),
        "ca_range_remove": (None, [c.c_void_p]),
        "ca_last_fault": (c.POINTER(_Fault), []),
        "ca_clear_fault": (None, []),
        "ca_set_fault": (None, [c.c_int, c.c_char_p, c.c_char_p]),
        "cuda_agent_reset": (None, []),
        "cuda_agent_set_loader": (None, [c.c_void_p]),
        "ca_set_schedule": (None, [c.c_uint64]),
        "ca_set_threads": (None, [c.c_int]),
        "ca_set_time_limit": (None, [c.c_double]),
        "ca_set_idle": (None, [c.c_int]),
        "ca_counter_launches": (c.c_uint64, []),
        "ca_counter_instructions": (c.c_uint64, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@cache
def _operation(name: str) -> int:
    return int(core().ca_op(name.encode()))


@dataclass(frozen=True)
class Kernel:
    """One `__global__` function of a loaded module."""

    name: str
    id: int
    parameters: tuple[tuple[int, int], ...]
    """(offset, size) in bytes of each parameter in the parameter buffer."""
    parameter_bytes: int
    unsupported: str
    """What the emulated device lacks to run it; empty when nothing."""


@dataclass(frozen=True)
class Module:
    """PTX loaded into the core."""

    handle: int
    kernels: dict[str, Kernel]
    variables: dict[str, int]
    """Addresses of `__device__` and `__constant__` variables."""


def load_ptx(text: str) -> Module:
    """Parse, assemble and load PTX; raises `ptx.PtxSyntaxError` when it is not PTX."""
    return _Loader(ptx.parse(text)).load()


def last_fault() -> Fault | None:
    """Return what stopped the last launch, None when it went through."""
    pointer = core().ca_last_fault()
    if not pointer:
        return None
    raw = pointer.contents
    return Fault(
        kind=FAULT_KINDS.get(raw.kind, "unknown"),
        message=raw.message.decode(errors="replace"),
        kernel=raw.kernel.decode(errors="replace"),
        file=raw.file.decode(errors="replace"),
        line=raw.line,
        block=(raw.block[0], raw.block[1], raw.block[2]),
        thread=(raw.thread[0], raw.thread[1], raw.thread[2]),
    )


def launch(
    module: Module,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[bytes],
    shared_bytes: int = 0,
) -> None:
    """Run a kernel to its end; arguments are the bytes of each parameter. Raises `LaunchFault`."""
    found = module.kernels[kernel]
    buffer = bytearray(found.parameter_bytes)
    for (offset, size), argument in zip(found.parameters, arguments, strict=True):
        if len(argument) != size:
            raise ValueError(f"{kernel}: parameter at offset {offset} has {size} bytes, got {len(argument)}")
        buffer[offset : offset + size] = argument
    dimensions = [(*values, 1, 1, 1)[:3] for values in (tuple(grid), tuple(block))]
    arrays = [(ctypes.c_uint32 * 3)(*values) for values in dimensions]
    kind = core().ca_launch(module.handle, found.id, arrays[0], arrays[1], bytes(buffer), shared_bytes, 0)
    if kind:
        fault = last_fault()
        assert fault is not None
        raise LaunchFault(fault)


class _Loader:
    def __init__(self, module: ptx.Module) -> None:
        self._module = module
        self._core = core()
        self._handle = self._core.ca_module_new()
        self._bodies = [f for f in module.functions if f.has_body]
        self._ids = {f.name: index for index, f in enumerate(self._bodies)}
        self._files: dict[str, int] = {}

    def load(self) -> Module:
        variables = self._variables()
        assembled = self._assemble(variables)
        lacking = _lacking(assembled)
        for function in assembled:
            self._hand_over(function, lacking[function.name])
        kernels = {
            f.name: Kernel(f.name, self._ids[f.name], tuple(f.parameters), f.parameter_bytes, lacking[f.name])
            for f in assembled
            if f.is_kernel
        }
        return Module(self._handle, kernels, variables)

    def _variables(self) -> dict[str, int]:
        """Allocate global and constant variables, then write their initial values, which may be addresses."""
        here = [v for v in self._module.variables if v.space in ("global", "const")]
        addresses = {
            v.name: self._core.ca_module_variable(
                self._handle, v.name.encode(), None, max(v.size, 1), v.align, int(v.space == "const")
            )
            for v in here
        }
        for variable in here:
            data = b""
            for item in variable.init:
                size = variable.bits // 8
                if isinstance(item, ptx.Symbol):
                    value = addresses.get(item.name, 0) + item.offset
                    if item.name in self._ids:
                        value = FUNCTION_TAG | self._ids[item.name]
                    if item.mask:
                        value = (value & item.mask) >> ((item.mask & -item.mask).bit_length() - 1)
                    else:
                        size = 8
                elif isinstance(item, ptx.Immediate):
                    value = item.value
                else:
                    continue
                data += (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
            if data:
                ctypes.memmove(addresses[variable.name], data, min(len(data), variable.size))
        return addresses

    def _assemble(self, variables: dict[str, int]) -> list[Assembled]:
        shared = shared_variables(self._module)
        dynamic = frozenset(name for name, v in shared.items() if v.extern or v.count == 0)
        static = {name: v for name, v in shared.items() if name not in dynamic}
        uses = {f.name: used_symbols(f) for f in self._bodies}
        # Device functions are assembled once, so what they use lies at one place for every kernel.
        by_functions = {s for f in self._bodies if not f.is_kernel for s in uses[f.name] & static.keys()}
        common, common_end = layout([static[s] for s in sorted(by_functions)], 0)
        assembled = []
        self._shared_bytes: dict[str, int] = {}
        for function in self._bodies:
            own = [static[s] for s in static if s in uses[function.name] and s not in common]
            calls_out = any(s in self._ids for s in uses[function.name])
            start = common_end if calls_out or uses[function.name] & by_functions else 0
            offsets, end = layout(own, start)
            align = max([16, *(shared[s].align for s in dynamic)])
            self._shared_bytes[function.name] = -(-end // align) * align if dynamic else end
            around = Surroundings(_operation, variables, self._ids, {**common, **offsets}, dynamic)
            assembled.append(Assembler(function, around).assemble())
        return assembled

    def _hand_over(self, function: Assembled, unsupported: str) -> None:
        constants = len(function.constants)

        def place(number: Number) -> int:
            if isinstance(number, Slot):
                return number.offset if number.constant else number.offset + constants
            return number

        code = bytearray()
        for instruction in function.code:
            operands = [place(o) for o in instruction.operands]
            if instruction.label:
                operands = [function.labels[instruction.label]]
            operands += [-1] * (16 - len(operands))
            guard = place(instruction.guard) if instruction.guard is not None else -1
            code += _INSTRUCTION.pack(
                instruction.op,
                guard,
                int(instruction.negated),
                self._file(instruction.place.file) if instruction.place.line else -1,
                instruction.place.line,
                *operands,
                *instruction.immediates,
            )
        parameters = _Parameters(bytes=function.parameter_bytes, count=len(function.parameters))
        for index, (offset, size) in enumerate(function.parameters[:512]):
            parameters.offset[index], parameters.size[index] = offset, size
        slots = [*function.parameter_slots, *function.return_slots]
        number = self._core.ca_module_function(
            self._handle,
            function.name.encode(),
            int(function.is_kernel),
            bytes(code),
            len(function.code),
            function.constants,
            constants,
            function.frame_bytes,
            function.local_bytes,
            self._shared_bytes[function.name],
            ctypes.byref(parameters),
            _pairs(slots, place),
            len(function.parameter_slots),
            len(function.return_slots),
            unsupported.encode() or None,
        )
        for call in function.calls:
            self._core.ca_module_call(
                self._handle,
                number,
                self._call_target(call),
                _pairs([*call.arguments, *call.results], place),
                len(call.arguments),
                len(call.results),
            )
        if function.most_threads:
            self._core.ca_module_limit_threads(self._handle, number, function.most_threads)
        for numbers in function.lists:
            values = [function.labels[n] if isinstance(n, str) else place(n) for n in numbers]
            self._core.ca_module_list(self._handle, number, (ctypes.c_int32 * len(values))(*values), len(values))

    def _call_target(self, call: Call) -> int:
        return self._ids.get(call.target, -1)

    def _file(self, path: str) -> int:
        if path not in self._files:
            self._files[path] = self._core.ca_module_file(self._handle, ptx.shown_path(path).encode())
        return self._files[path]


def _pairs(slots: Sequence[tuple[Slot, int]], place: Callable[[Number], int]) -> ctypes.Array[ctypes.c_int32]:
    numbers = [n for slot, size in slots for n in (place(slot), size)]
    return (ctypes.c_int32 * max(len(numbers), 1))(*numbers)


def _lacking(functions: list[Assembled]) -> dict[str, str]:
    """Return, for each function, what it or anything it may call lacks."""
    by_name = {f.name: f for f in functions}
    lacking = {}
    for function in functions:
        seen, waiting, found = set(), [function.name], ""
        while waiting and not found:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            found = by_name[name].unsupported
            for call in by_name[name].calls:
                if call.target in by_name:
                    waiting.append(call.target)
                elif not call.target:  # through a pointer: any device function
                    waiting += [f.name for f in functions if not f.is_kernel]
        lacking[function.name] = found
    return lacking
