"""Every instruction the emulated device accepts gives what a plain reference, and a real device, say it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from cuda_agent import emulator
from cuda_agent.emulator import ptx
from cuda_agent.emulator.assemble import HANDLERS, Assembler, Surroundings
from cuda_agent.emulator.module import core

from . import bench, conversion_cases, float_cases, integer_cases, matrix_cases, memory_cases, warp_cases
from .bench import Case

CASES = {
    "integers": integer_cases.cases,
    "floats": float_cases.cases,
    "conversions": conversion_cases.cases,
    "memory": memory_cases.cases,
    "warps": warp_cases.cases,
    "matrices": matrix_cases.cases,
}
PRODUCTS = [(product, "") for product in matrix_cases.mma()] + matrix_cases.wmma()
PER_MODULE = 50


def _modules(cases: list[Case]) -> Iterator[tuple[str, list[Case]]]:
    for start in range(0, len(cases), PER_MODULE):
        some = cases[start : start + PER_MODULE]
        before = dict.fromkeys(case.module for case in some)
        kernels = [bench.kernel(case, f"k{number}") for number, case in enumerate(some)]
        yield "\n".join([bench.HEADER, *before, *kernels]), some


def _arrays(case: Case, columns: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    kinds = [*case.inputs, case.result]
    filled = [*columns, [0] * bench.LANES]
    return [np.array(column, dtype=f"u{bench.BITS[kind] // 8}") for column, kind in zip(filled, kinds, strict=True)]


@contextmanager
def device_memory(*arrays: np.ndarray[Any, Any]) -> Iterator[list[bytes]]:
    """Let kernels touch the arrays; gives their addresses as kernel arguments."""
    for array in arrays:
        core().ca_range_add(b"array", array.ctypes.data, array.nbytes, 0)
    yield [int(array.ctypes.data).to_bytes(8, "little") for array in arrays]
    for array in arrays:
        core().ca_range_remove(array.ctypes.data)


@pytest.mark.parametrize("group", CASES)
def test_each_instruction_gives_what_the_reference_gives(group: str) -> None:
    wrong = []
    for text, cases in _modules(CASES[group]()):
        module = emulator.load_ptx(text)
        for number, case in enumerate(cases):
            columns = bench.operands(case)
            arrays = _arrays(case, columns)
            with device_memory(*arrays) as arguments:
                emulator.launch(module, f"k{number}", (1,), (bench.LANES,), arguments)
            wrong += bench.differences(case, columns, arrays[-1], bench.expected(case, columns))[:1]
    assert not wrong, f"{len(wrong)} instructions differ:\n" + "\n".join(wrong[:20])


def _products_text() -> str:
    return "\n".join([bench.HEADER, *(product.kernel(f"k{n}") for n, (product, _) in enumerate(PRODUCTS))])


def _product_arrays(product: matrix_cases.Product) -> list[np.ndarray[Any, Any]]:
    parts = zip(matrix_cases.operands(product), "abc", product.kinds[1:], strict=True)
    loaded = [np.frombuffer(product.load(matrix, role, kind), dtype=np.uint8).copy() for matrix, role, kind in parts]
    size = max(product.m * product.n * matrix_cases.BITS[product.kinds[0]] // 8, 16)
    return [*loaded, np.zeros(size, dtype=np.uint8)]


def _product_of(product: matrix_cases.Product, side: str, array: np.ndarray[Any, Any]) -> list[list[int]]:
    if side:
        return matrix_cases.stored(array.tobytes(), product.kinds[0], product.m, product.n, side)
    return matrix_cases.gathered(array.tobytes(), product.kinds[0], product.m, product.n)


def test_each_matrix_product_is_exact_on_small_integers() -> None:
    module, wrong = emulator.load_ptx(_products_text()), []
    for number, (product, side) in enumerate(PRODUCTS):
        arrays = _product_arrays(product)
        with device_memory(*arrays) as arguments:
            emulator.launch(module, f"k{number}", (1,), (32,), arguments)
        if _product_of(product, side, arrays[-1]) != matrix_cases.expected(product):
            wrong.append(product.name)
    assert wrong == []


def test_every_opcode_the_assembler_accepts_is_tested() -> None:
    tested = set().union(*(case.opcodes for cases in CASES.values() for case in cases()))
    tested |= {"mma", "wmma"} if PRODUCTS else set()
    assert sorted(HANDLERS.keys() - tested) == []


def test_every_operation_of_the_core_is_run_by_a_test() -> None:
    used: set[str] = set()

    def operation(name: str) -> int:
        used.add(name)
        return int(core().ca_op(name.encode()))

    texts = [text for cases in CASES.values() for text, _ in _modules(cases())]
    for text in [*texts, _products_text()]:
        _assemble(ptx.parse(text), operation)
    there = {core().ca_op_name(number).decode() for number in range(core().ca_op_count())}
    assert sorted(there - used - {"unsupported"}) == []


def _assemble(module: ptx.Module, operation: Any) -> None:
    names = {f.name: number for number, f in enumerate(module.functions)}
    addresses = {v.name: 4096 for v in module.variables if v.space in ("global", "const")}
    shared = [v for f in module.functions for v in f.variables if v.space == "shared"]
    dynamic = frozenset(v.name for v in module.variables if v.space == "shared")
    around = Surroundings(operation, addresses, names, {v.name: 0 for v in shared}, dynamic)
    for function in module.functions:
        Assembler(function, around).assemble()


@pytest.mark.gpu
@pytest.mark.parametrize("group", CASES)
def test_a_real_device_gives_what_the_reference_gives(group: str) -> None:
    from .device import Driver

    driver, wrong = Driver(), []
    for text, cases in _modules(CASES[group]()):
        driver.load(text)
        for number, case in enumerate(cases):
            columns = bench.operands(case)
            arrays = _arrays(case, columns)
            driver.launch(f"k{number}", bench.LANES, arrays)
            wrong += bench.differences(case, columns, arrays[-1], bench.expected(case, columns))[:1]
    assert not wrong, f"{len(wrong)} instructions differ:\n" + "\n".join(wrong[:20])


@pytest.mark.gpu
def test_a_real_device_multiplies_matrices_as_the_reference() -> None:
    from .device import Driver

    driver, wrong = Driver(), []
    driver.load(_products_text())
    for number, (product, side) in enumerate(PRODUCTS):
        arrays = _product_arrays(product)
        driver.launch(f"k{number}", 32, arrays)
        if _product_of(product, side, arrays[-1]) != matrix_cases.expected(product):
            wrong.append(product.name)
    assert wrong == []
