"""CUDA C++ that nvcc compiled runs on the emulated device and gives what torch gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from cuda_agent import emulator

from .building import corpus

SCHEDULES = (0, 1, 7)
"""Orders in which the warps of a block run: correct kernels don't mind."""


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    return corpus("plain")


@pytest.fixture(scope="module")
def halves() -> ModuleType:
    return corpus("halves")


@pytest.fixture(scope="module")
def libraries() -> ModuleType:
    return corpus("libraries")


@pytest.fixture(scope="module")
def maths() -> ModuleType:
    return corpus("maths")


@pytest.fixture(autouse=True, params=SCHEDULES, ids=lambda seed: f"schedule {seed}")
def _schedule(request: pytest.FixtureRequest) -> None:
    device = emulator.attach()
    device.reset()
    device.schedule(request.param)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _integers(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)


@pytest.mark.parametrize(("rows", "columns", "threads"), [(3, 1000, 256), (1, 5, 32), (7, 33, 96), (2, 4096, 1024)])
def test_rows_are_summed_over_warps_and_shared_memory(plain: ModuleType, rows: int, columns: int, threads: int) -> None:
    x, y = _random(rows, columns), torch.full((rows,), torch.nan)
    plain.sum_rows(x, y, rows, columns, threads)
    torch.testing.assert_close(y, x.sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tile", [8, 16])
def test_tiles_in_shared_memory_multiply_ragged_matrices(plain: ModuleType, tile: int) -> None:
    a, b, c = _random(37, 50), _random(50, 29, seed=1), torch.full((37, 29), torch.nan)
    plain.multiply(a, b, c, 37, 29, 50, tile)
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns", [1000, 30000])
def test_dynamic_shared_memory_beyond_48_kib_holds_a_row(plain: ModuleType, columns: int) -> None:
    x, y = _random(2, columns), torch.full((2, columns), torch.nan)
    plain.softmax(x, y, 2, columns)
    torch.testing.assert_close(y, torch.softmax(x, 1), rtol=1e-5, atol=1e-8)


def test_a_templated_grid_stride_loop_takes_a_functor(plain: ModuleType) -> None:
    x, y = _random(20000), torch.full((20000,), torch.nan)
    plain.affine(x, y, 20000, 2.0, -0.5)
    torch.testing.assert_close(y, x * 2 - 0.5)


def test_vectors_of_four_are_loaded_and_stored(plain: ModuleType) -> None:
    x, y = _random(4096), torch.full((4096,), torch.nan)
    plain.relu_vector(x, y, 4096, 128)
    assert torch.equal(y, torch.relu(x))


def test_atomics_in_shared_and_global_memory_collect_statistics(plain: ModuleType) -> None:
    x, histogram = _random(5000), torch.empty(16, dtype=torch.int32)
    top, total, bits = torch.tensor([-1e30]), torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    plain.statistics(x, histogram, top, total, bits, 5000)
    bins = (x * 4 + 8).to(torch.int32).clamp(0, 15)
    assert histogram.tolist() == torch.bincount(bins, minlength=16).tolist()
    assert top.item() == x.max().item()
    assert total.item() == pytest.approx(x.double().sum().item(), abs=1e-9)
    assert bits.item() == -1


def test_divergent_loops_and_switches_give_each_thread_its_own(plain: ModuleType) -> None:
    def steps(v: int) -> int:
        count = 0
        while v != 1:
            v, count = (3 * v + 1 if v % 2 else v // 2), count + 1
        return {0: count + 1000, 1: count * 3, 2: -count, 3: count ^ 0x55, 4: count}[count % 5]

    x, y = torch.arange(1, 301, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)
    plain.collatz_steps(x, y, 300)
    assert y.tolist() == [steps(v) for v in range(1, 301)]


def test_a_three_dimensional_grid_covers_a_tensor(plain: ModuleType) -> None:
    x, y = _random(5, 13, 18), torch.full((18, 13, 5), torch.nan)
    plain.reverse_axes(x, y, 5, 13, 18)
    assert torch.equal(y, x.permute(2, 1, 0))


def test_recursion_function_pointers_and_virtual_functions_work(plain: ModuleType) -> None:
    x = torch.arange(12, dtype=torch.int32)
    fib, applied, areas = torch.zeros(12, dtype=torch.int32), torch.zeros(12), torch.zeros(12)
    plain.call_functions(x, fib, applied, areas, 12)
    assert fib.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert applied.tolist() == [v * v if v % 2 else 2 * v for v in range(12)]
    assert areas.tolist() == [v * v if v % 3 else 3 * v * v for v in range(12)]


def test_symbols_in_constant_and_device_memory_are_copied_to_and_from(plain: ModuleType) -> None:
    x, y, count = _random(300), torch.full((300,), torch.nan), torch.zeros(1, dtype=torch.int32)
    plain.apply_filter(x, y, count, 300, 0.5)
    weights = torch.arange(1, 6) * 0.5
    expected = torch.nn.functional.conv1d(x.view(1, 1, -1), weights.view(1, 1, -1), padding=2).view(-1)
    expected += 3 * torch.tensor([1.5, 2.5, 3.5, 4.5]).repeat(75)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert count.item() == 300


def test_scratch_memory_streams_events_and_device_queries_work(plain: ModuleType) -> None:
    x, y = _random(1000), torch.full((1000,), torch.nan)
    plain.through_scratch(x, y, 1000)
    assert torch.equal(y, 4 * x)


def test_printf_writes_what_c_would(plain: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    plain.print_lines(3)
    lines = [f"thread {k} of block 0: {k * 0.5:.2f}   abc {1 << 40} x%\n" for k in range(3)]
    assert capfd.readouterr().out == "".join(lines)


def test_votes_matches_and_scans_agree_with_the_warp_as_a_list(plain: ModuleType) -> None:
    x, y = _integers(0, 8, 64), torch.zeros(64, dtype=torch.int32)
    plain.warp_votes(x, y, 64)
    expected = []
    for start in (0, 32):
        warp = x[start : start + 32].tolist()
        for lane, v in enumerate(warp):
            total = sum(warp[: lane + 1]) + v % 2
            total += 100 * sum(w % 2 for w in warp) + 10000 * warp.count(v) + max(warp) + (7 if max(warp) > 5 else 0)
            expected.append(total + warp[lane if lane % 4 == 3 else lane + 1])
    assert y.tolist() == expected


def test_a_struct_passed_by_value_and_a_local_array_are_indexed(plain: ModuleType) -> None:
    x, y = _random(40), torch.zeros(80)
    plain.by_value(x, y, 40)
    expected = []
    for i in range(40):
        local = [0.0] * 8
        for k in range(8):
            local[(k * 3 + i) % 8] = x[i].item() * ((i + k) % 40)
        expected.append(sum(local[(k + i) % 8] * k for k in range(8)))
    torch.testing.assert_close(y[::2], torch.tensor(expected), rtol=1e-5, atol=1e-4)


def test_pairs_of_halves_are_fused_and_compared(halves: ModuleType) -> None:
    a, b = _random(500).half(), _random(500, seed=1).half()
    y = torch.full((500,), torch.nan, dtype=torch.float16)
    halves.fma_pairs(a, b, y, 500)
    exact = (a.double() * b.double() + 0.5).half()
    assert torch.equal(y[::2], exact[::2].clamp(min=-1))
    assert torch.equal(y[1::2], exact[1::2].clamp(min=0))


def test_pairs_of_bfloats_go_through_float(halves: ModuleType) -> None:
    x, y = _random(500).bfloat16(), torch.full((500,), torch.nan, dtype=torch.bfloat16)
    halves.gelu_pairs(x, y, 500)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x.float()).bfloat16(), rtol=2**-8, atol=1e-3)


def test_functions_of_halves_are_within_two_units_of_the_last_place(halves: ModuleType) -> None:
    x = (_random(64) * 4).half()
    exps, roots, tanhs = torch.empty_like(x), torch.empty_like(x), torch.empty(64, dtype=torch.bfloat16)
    halves.short_maths(x, exps, roots, tanhs, 64)
    torch.testing.assert_close(exps, x.double().exp().half(), rtol=2**-9, atol=0)
    torch.testing.assert_close(roots, x.double().abs().rsqrt().half(), rtol=2**-9, atol=0)
    torch.testing.assert_close(tanhs, x.bfloat16().double().tanh().bfloat16(), rtol=2**-7, atol=0)


def test_pairs_of_halves_are_added_atomically(halves: ModuleType) -> None:
    x = _integers(-4, 5, 64).half()
    h, b = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    halves.atomic_pairs(x, h, b, 32)
    assert h.tolist() == b.tolist() == [x[::2].sum().item(), x[1::2].sum().item()]


def test_eight_bit_floats_round_as_torch_rounds_them(halves: ModuleType) -> None:
    x, e4, e5 = _random(256) * 30, torch.empty(256), torch.empty(256)
    halves.round_to_fp8(x, e4, e5, 256)
    assert torch.equal(e4, x.to(torch.float8_e4m3fn).float())
    assert torch.equal(e5, x.to(torch.float8_e5m2).float())


def test_wmma_multiplies_halves_into_floats(halves: ModuleType) -> None:
    a, b, c = _random(32, 48).half(), _random(48, 48, seed=1).half(), torch.full((32, 48), torch.nan)
    halves.wmma_relu(a, b, c, 32, 48, 48)
    torch.testing.assert_close(c, torch.relu(a.float() @ b.float().T), rtol=1e-5, atol=1e-4)


def test_inline_mma_multiplies_what_ldmatrix_and_cp_async_brought(halves: ModuleType) -> None:
    a, b, c = _random(16, 64).bfloat16(), _random(8, 64, seed=1).bfloat16(), torch.full((16, 8), torch.nan)
    halves.mma_bf16(a, b, c, 64)
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)


def test_a_two_stage_pipeline_sums_its_tiles(halves: ModuleType) -> None:
    x, y = _random(5, 256), torch.full((64,), torch.nan)
    halves.sum_tiles(x, y, 5)
    expected = sum(x[t].flip(0)[:64] * (t + 1) for t in range(5))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_cooperative_groups_reduce_tiles_blocks_and_coalesced_threads(libraries: ModuleType) -> None:
    x = _integers(-50, 50, 256)
    tiles, block, odd = (torch.zeros(size, dtype=torch.int32) for size in (32, 1, 1))
    libraries.group_sums(x, tiles, block, odd, 256)
    assert tiles.tolist() == x.view(32, 8).sum(1).tolist()
    assert (block.item(), odd.item()) == (x.sum().item(), (x % 2 != 0).sum().item())


def test_a_cooperative_launch_synchronises_the_whole_grid(libraries: ModuleType) -> None:
    a = _integers(0, 5, 200)
    expected, b = a.clone(), torch.zeros_like(a)
    for _ in range(4):
        expected = torch.roll(expected, -1) + torch.roll(expected, 1)
    libraries.spread(a, b, 200, 4)
    assert torch.equal(a, expected)


def test_cub_reduces_scans_and_sorts_a_block(libraries: ModuleType) -> None:
    x = _integers(-1000, 1000, 256)
    total, scan, ordered = (torch.zeros(size, dtype=torch.int32) for size in (1, 128, 256))
    most = torch.zeros(4)
    libraries.block_primitives(x, total, scan, ordered, most)
    assert total.item() == x.sum().item()
    assert scan.tolist() == (torch.cumsum(x[::2], 0) - x[::2]).tolist()
    assert ordered.tolist() == sorted(x.tolist())
    assert most.tolist() == x[1::2].view(4, 32).max(1).values.tolist()


def test_barriers_of_libcudacxx_wait_for_asynchronous_copies(libraries: ModuleType) -> None:
    x, y = _integers(0, 1000, 64), torch.zeros(64, dtype=torch.int32)
    libraries.reverse_staged(x, y)
    assert torch.equal(y, x.flip(0))


# What the functions of maths.cu compute in double, and the error CUDA states for float in units of the last place
# (CUDA C++ Programming Guide, "Mathematical Functions"), one more for what the reference itself is off.
UNARY: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], float]] = [
    ("exp", torch.exp, 2),
    ("log", lambda x: x.abs().log(), 2),
    ("sin", torch.sin, 3),
    ("cos", torch.cos, 3),
    ("tan", torch.tan, 5),
    ("tanh", torch.tanh, 3),
    ("erf", torch.erf, 3),
    ("erfc", torch.erfc, 5),
    ("sqrt", lambda x: x.abs().sqrt(), 1),
    ("rsqrt", lambda x: x.abs().rsqrt(), 3),
    ("cbrt", lambda x: x.sign() * x.abs().pow(1 / 3), 8),
    ("exp2", torch.exp2, 3),
    ("expm1", torch.expm1, 2),
    ("log2", lambda x: x.abs().log2(), 2),
    ("log10", lambda x: x.abs().log10(), 3),
    ("log1p", lambda x: x.abs().log1p(), 2),
    ("sinh", torch.sinh, 4),
    ("cosh", torch.cosh, 3),
    ("atan", torch.atan, 3),
    ("asinh", torch.asinh, 4),
    ("floor", torch.floor, 0),
    ("ceil", torch.ceil, 0),
    ("rint", torch.round, 0),
    ("trunc", torch.trunc, 0),
    ("lgamma", lambda x: torch.lgamma(x.abs()), 8),
    ("tgamma", lambda x: torch.where(x < -4, 2.5, x).double().apply_(math.gamma), 12),
    ("normcdf", torch.special.ndtr, 6),
    ("acos", lambda x: torch.acos(x / 100), 3),
    ("asin", lambda x: torch.asin(x / 100), 4),
    ("acosh", lambda x: torch.acosh(torch.where(x.abs() < 1, 1.5, x.abs())), 6),
    ("atanh", lambda x: torch.atanh(x / 100), 5),
]
BINARY: list[tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor], float]] = [
    ("pow", lambda x, z: x.abs().pow(z), 8),
    ("fmod", torch.fmod, 0),
    ("atan2", torch.atan2, 4),
    ("hypot", torch.hypot, 3),
    ("fmin", torch.fmin, 0),
    ("fmax", torch.fmax, 0),
    ("fdim", lambda x, z: (x - z).clamp(min=0), 1),
    ("copysign", torch.copysign, 0),
    ("remainder", lambda x, z: x - z * (x / z).round(), 1),
    ("divide", torch.divide, 1),
]


def _worst(got: torch.Tensor, exact: torch.Tensor, near: float) -> float:
    """Return the largest error in units of the last place; values below `near` are measured as if they were so large."""
    place = torch.finfo(got.dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=near))))
    return float(((got.double() - exact).abs() / place).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
def test_mathematical_functions_keep_the_errors_that_cuda_states(maths: ModuleType, dtype: torch.dtype) -> None:
    x = (torch.rand(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 12 - 6).to(dtype)
    y = torch.empty(len(UNARY), 1000, dtype=dtype)
    (maths.unary_floats if dtype == torch.float32 else maths.unary_doubles)(x, y, 1000)
    z = (torch.rand(1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 8 - 4).to(dtype)
    w = torch.empty(len(BINARY), 1000, dtype=dtype)
    (maths.binary_floats if dtype == torch.float32 else maths.binary_doubles)(x, z, w, 1000)
    # torch's own double functions are off by a few units: against them doubles are held only loosely.
    slack = 1.0 if dtype == torch.float32 else 1e4
    wrong = {}
    for row, (name, function, bound) in zip(y, UNARY, strict=True):
        if (worst := _worst(row, function(x.double()), 1e-2)) > (bound * slack if bound else 0.5):
            wrong[name] = worst
    for row, (name, binary, bound) in zip(w, BINARY, strict=True):
        if (worst := _worst(row, binary(x.double(), z.double()), 1e-2)) > (bound * slack if bound else 0.5):
            wrong[name] = worst
    assert wrong == {}


def test_fast_mathematics_is_near(maths: ModuleType) -> None:
    x = torch.rand(500, generator=torch.Generator().manual_seed(4)) * 6 - 3
    y = torch.empty(16, 500)
    maths.fast_floats(x, y, 500)
    v = x.double()
    p = (x.abs() + 0.01).double()
    expected = [v.exp(), p.log(), v.sin(), v.cos(), p.pow(1.5), v / p, p.rsqrt(), 1 / p, p.sqrt(), p.log2(), 10**v]
    expected += [v.clamp(0, 1), v * p + 1, v.tan(), v + 1e-7, p.rsqrt()]
    for row, exact in zip(y, expected, strict=True):
        torch.testing.assert_close(row.double(), exact, rtol=2e-5, atol=1e-6)
