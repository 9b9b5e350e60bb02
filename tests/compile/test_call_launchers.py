"""Call launchers from Python: the right values arrive, and a wrong call says what is wrong with it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cuda_agent.emulator.runtime import Runtime
from cuda_agent.gates.compile import CompileGate
from tests.compile.building import extension

KERNELS = Path(__file__).with_name("launchers.cu").read_text()


@pytest.fixture(scope="module")
def launchers(gate: CompileGate, runtime: Runtime) -> ModuleType:
    return extension(gate, KERNELS)


class TestTensors:
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            ("float", torch.float32),
            ("double", torch.float64),
            ("half", torch.float16),
            ("bf16", torch.bfloat16),
            ("e4m3", torch.float8_e4m3fn),
            ("e5m2", torch.float8_e5m2),
            ("i8", torch.int8),
            ("u8", torch.uint8),
            ("i16", torch.int16),
            ("u16", torch.uint16),
            ("i32", torch.int32),
            ("u32", torch.uint32),
            ("i64", torch.int64),
            ("u64", torch.uint64),
            ("bool", torch.bool),
            ("complex", torch.complex64),
        ],
    )
    def test_a_pointer_takes_its_dtype_and_no_other(self, launchers: ModuleType, name: str, dtype: torch.dtype) -> None:
        x = torch.arange(7).to(dtype)
        y = torch.empty(7, dtype=dtype)
        copy = getattr(launchers, f"copy_{name}")
        copy(x, y, 7)
        assert y.view(torch.uint8).tolist() == x.view(torch.uint8).tolist()
        other = torch.int32 if dtype == torch.float32 else torch.float32
        wanted = str(dtype).removeprefix("torch.")
        with pytest.raises(
            TypeError, match=rf"copy_{name}\(\): argument 2 'y' must be a {wanted} tensor .*got {other}"
        ):
            copy(x, torch.empty(7, dtype=other), 7)

    @pytest.mark.parametrize(
        ("name", "lanes", "dtype"),
        [("float4", 4, torch.float32), ("half2", 2, torch.float16), ("uchar4", 4, torch.uint8)],
    )
    def test_a_vector_pointer_takes_the_dtype_of_its_lanes(
        self, launchers: ModuleType, name: str, lanes: int, dtype: torch.dtype
    ) -> None:
        x = torch.arange(4 * lanes).to(dtype)
        y = torch.zeros_like(x)
        getattr(launchers, f"copy_{name}")(x, y, 4)
        assert y.tolist() == x.tolist()
        with pytest.raises(TypeError, match="argument 1 'x' must be a"):
            getattr(launchers, f"copy_{name}")(x.to(torch.int16), y, 4)

    def test_a_void_pointer_takes_any_dtype_and_none_is_a_null_pointer(self, launchers: ModuleType) -> None:
        out = torch.full((1,), -1)
        for dtype in (torch.float16, torch.int64, torch.bool):
            x = torch.zeros(2, dtype=dtype)
            launchers.take_anything(x, out)
            assert out.item() == x.data_ptr()
        launchers.take_anything(None, out)
        assert out.item() == 0

    def test_aliases_and_enumerations_are_followed(self, launchers: ModuleType) -> None:
        y = torch.zeros(3)
        launchers.with_aliases(torch.tensor([1.0, 2.0, 3.0]), y, 3, 2, 4)
        assert y.tolist() == [24.0, 48.0, 72.0]

    def test_a_tensor_that_is_not_contiguous_is_refused_unless_marked(self, launchers: ModuleType) -> None:
        x = torch.arange(12.0).reshape(4, 3)
        y = torch.zeros(4)
        with pytest.raises(
            ValueError, match=r"argument 1 'x' is not contiguous. Pass x.contiguous\(\), or cuda_ext.*strided"
        ):
            launchers.copy_column(x[:, 1], y, 4, 3)
        marked = launchers.strided(x[:, 1])
        launchers.copy_column(marked, y, 4, 3)
        assert y.tolist() == [1.0, 4.0, 7.0, 10.0]
        assert marked.tensor.shape == (4,)
        with pytest.raises(TypeError, match=r"strided\(\): expected a torch.Tensor, got list"):
            launchers.strided([1.0])

    def test_a_marked_tensor_keeps_its_dtype_check_and_its_bounds(
        self, launchers: ModuleType, runtime: Runtime
    ) -> None:
        with pytest.raises(TypeError, match="must be a float32 tensor"):
            launchers.copy_column(launchers.strided(torch.zeros(4, 3, dtype=torch.float64)[:, 1]), torch.zeros(4), 4, 3)
        big = torch.zeros(8, 3)
        with pytest.raises(RuntimeError, match=r"copy_column\(\): out-of-bounds .* past the end of 'x' \(40 bytes\)"):
            launchers.copy_column(launchers.strided(big[:4, 1]), torch.zeros(5), 5, 3)
        runtime.reset()

    def test_what_is_no_tensor_is_named(self, launchers: ModuleType) -> None:
        with pytest.raises(
            TypeError, match=r"copy_float\(\): argument 1 'x' \(float\*\) must be a torch.Tensor or None, got list"
        ):
            launchers.copy_float([1.0], torch.zeros(1), 1)

    def test_subclasses_of_tensor_are_tensors(self, launchers: ModuleType) -> None:
        y = torch.zeros(2)
        launchers.copy_float(torch.nn.Parameter(torch.ones(2)), y, 2)
        assert y.tolist() == [1.0, 1.0]

    def test_a_tensor_on_another_device_is_refused(self, launchers: ModuleType) -> None:
        class Elsewhere(torch.Tensor):
            def get_device(self) -> int:
                return 3

        moved = torch.zeros(2).as_subclass(Elsewhere)
        with pytest.raises(
            ValueError, match="argument 1 'x' lies on cuda:3; on the emulated device tensors lie on the CPU"
        ):
            launchers.copy_float(moved, torch.zeros(2), 2)


BOUNDS = {
    "i8": (torch.int8, -128, 127),
    "u8": (torch.uint8, 0, 255),
    "i16": (torch.int16, -(2**15), 2**15 - 1),
    "u16": (torch.uint16, 0, 2**16 - 1),
    "i32": (torch.int32, -(2**31), 2**31 - 1),
    "u32": (torch.uint32, 0, 2**32 - 1),
    "i64": (torch.int64, -(2**63), 2**63 - 1),
    "u64": (torch.uint64, 0, 2**64 - 1),
}


class TestNumbers:
    @pytest.mark.parametrize("name", BOUNDS)
    def test_an_integer_arrives_over_its_whole_range_and_not_beyond(self, launchers: ModuleType, name: str) -> None:
        dtype, low, high = BOUNDS[name]
        out = torch.zeros(1, dtype=dtype)
        store = getattr(launchers, f"store_{name}")
        for value in (low, high, 1):
            store(out, value)
            assert out.item() == value
        for value in (low - 1, high + 1):
            with pytest.raises(
                OverflowError, match=rf"store_{name}\(\): argument 2 'value' is {value}, outside the range"
            ):
                store(out, value)

    def test_floating_point_arrives_rounded_once(self, launchers: ModuleType) -> None:
        single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
        launchers.store_double(double, 0.1)
        assert double.item() == 0.1
        launchers.store_float(single, 0.1)
        assert single.item() == torch.tensor(0.1).item()
        launchers.store_float(single, 3)
        assert single.item() == 3.0

    @pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bf16", torch.bfloat16)])
    def test_sixteen_bit_floats_round_as_torch_does(self, launchers: ModuleType, name: str, dtype: torch.dtype) -> None:
        out = torch.zeros(1, dtype=dtype)
        values = [
            0.0,
            -0.0,
            1.0,
            -2.5,
            0.1,
            1 / 3,
            2049.0,
            2051.0,
            65504.0,
            65519.9,
            65520.0,
            6e-8,
            2.9e-8,
            3e-8,
            6.1e-5,
        ]
        values += [1e-40, 3.4e38, 1e300, -1e300, 1e-300, math.inf, -math.inf, 255.5, 257.0, 259.0]
        for value in values:
            getattr(launchers, f"store_{name}")(out, value)
            expected = torch.tensor(value, dtype=torch.float64).to(dtype)
            assert out.view(torch.int16).item() == expected.view(torch.int16).item(), value
        getattr(launchers, f"store_{name}")(out, math.nan)
        assert out.isnan().all()

    def test_a_bool_takes_bools_and_integers_only(self, launchers: ModuleType) -> None:
        out = torch.zeros(1, dtype=torch.bool)
        for value in (True, 7):
            launchers.store_bool(out, value)
            assert out.item() is True
        launchers.store_bool(out, False)
        assert out.item() is False
        with pytest.raises(TypeError, match=r"store_bool\(\): argument 2 'value' \(bool\) must be a bool, got float"):
            launchers.store_bool(out, 1.0)

    @pytest.mark.parametrize(
        ("launcher", "value", "message"),
        [
            ("i32", 2.0, r"\(int\) must be an integer, got float"),
            ("i32", "2", r"\(int\) must be an integer, got str"),
            ("i32", None, r"\(int\) must be an integer, got NoneType"),
            ("i32", torch.tensor(2), r"\(int\) must be a Python integer; use .item\(\) for the value of, got a tensor"),
            ("u64", 2.5, r"\(unsigned long long\) must be an integer, got float"),
            ("float", "2", r"\(float\) must be a number, got str"),
            ("float", None, r"\(float\) must be a number, got NoneType"),
            (
                "float",
                torch.tensor(2.0),
                r"\(float\) must be a Python number; use .item\(\) for the value of, got a tensor",
            ),
        ],
    )
    def test_a_wrong_kind_of_value_is_named(
        self, launchers: ModuleType, launcher: str, value: Any, message: str
    ) -> None:
        kinds = {"i32": torch.int32, "u64": torch.uint64, "float": torch.float32}
        out = torch.zeros(1, dtype=kinds[launcher])
        with pytest.raises(TypeError, match=rf"store_{launcher}\(\): argument 2 'value' {message}"):
            getattr(launchers, f"store_{launcher}")(out, value)

    def test_a_bool_is_an_integer_as_in_python(self, launchers: ModuleType) -> None:
        out = torch.zeros(1, dtype=torch.int32)
        launchers.store_i32(out, True)
        assert out.item() == 1


class TestCalls:
    @pytest.mark.parametrize(("given", "plural"), [((), "got 0"), ((torch.zeros(1),), "got 1")])
    def test_a_wrong_number_of_arguments_shows_the_signature(
        self, launchers: ModuleType, given: tuple[Any, ...], plural: str
    ) -> None:
        expected = rf"copy_float\(\) takes 3 arguments, {plural}. Its signature is copy_float\(const float\* x, float\* y, int n\)"
        with pytest.raises(TypeError, match=expected):
            launchers.copy_float(*given)

    def test_the_stream_is_not_an_argument(self, launchers: ModuleType) -> None:
        assert launchers.no_arguments() is None
        with pytest.raises(TypeError, match=r"takes 0 arguments, got 1.*the stream is supplied"):
            launchers.no_arguments(0)

    def test_keyword_arguments_are_refused(self, launchers: ModuleType) -> None:
        with pytest.raises(TypeError, match="keyword"):
            launchers.copy_float(torch.zeros(1), torch.zeros(1), n=1)

    @pytest.mark.parametrize(
        ("code", "name"), [(1, "cudaErrorInvalidValue: "), (2, "cudaErrorMemoryAllocation: "), (-7, "")]
    )
    def test_a_code_that_is_not_zero_raises_with_its_name(self, launchers: ModuleType, code: int, name: str) -> None:
        assert launchers.fail(0) is None
        with pytest.raises(RuntimeError, match=rf"fail\(\) returned {code} \({name}"):
            launchers.fail(code)

    def test_a_failed_launch_raises_though_the_launcher_returns_nothing(
        self, launchers: ModuleType, runtime: Runtime
    ) -> None:
        with pytest.raises(RuntimeError, match=r"too_many_threads\(\): .*(4096|cudaErrorInvalidValue)"):
            launchers.too_many_threads(torch.zeros(1))
        runtime.reset()

    def test_an_error_is_not_blamed_on_the_next_launcher(self, launchers: ModuleType, runtime: Runtime) -> None:
        with pytest.raises(RuntimeError, match="too_many_threads"):
            launchers.too_many_threads(torch.zeros(1))
        runtime.reset()
        assert launchers.no_arguments() is None

    def test_a_write_past_a_tensor_names_launcher_line_and_tensor(
        self, launchers: ModuleType, runtime: Runtime
    ) -> None:
        expected = r"out_of_bounds\(\): out-of-bounds global write of 4 bytes at kernels/scale.cu:17 .*the end of 'x' \(16 bytes\)"
        with pytest.raises(RuntimeError, match=expected):
            launchers.out_of_bounds(torch.zeros(4), 4)
        runtime.reset()

    def test_help_shows_the_signature(self, launchers: ModuleType) -> None:
        assert launchers.store_u64.__doc__.startswith("store_u64(unsigned long long* out, unsigned long long value)")
        assert "const float* x" in launchers.with_aliases.__doc__

    def test_a_call_costs_microseconds(self, launchers: ModuleType) -> None:
        launchers.take_five(0, 0, 0.0, 0.0, False)
        best = math.inf
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(1000):
                launchers.take_five(0, 0, 0.0, 0.0, False)
            best = min(best, (time.perf_counter() - started) / 1000)
        assert best < 5e-6
