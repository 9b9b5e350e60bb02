"""What is wrong with a kernel is said with its kind, the line, the thread and the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from cuda_agent import emulator

from .building import CORPUS, corpus


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    return corpus("faults")


@pytest.fixture(autouse=True)
def device() -> Iterator[emulator.Runtime]:
    runtime = emulator.attach()
    runtime.reset()
    runtime.schedule(0)
    yield runtime
    runtime.reset()
    runtime.time_limit(60)


def _line(name: str) -> str:
    """Return the place of the line that a comment marks."""
    text = (CORPUS / "faults.cu").read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(text, 1) if line.rstrip().endswith(f"// LINE {name}"))
    return f"kernels/faults.cu:{number}"


def _fault(device: emulator.Runtime, error: pytest.ExceptionInfo[RuntimeError]) -> tuple[emulator.Fault, str]:
    fault = device.last_fault()
    assert fault is not None
    assert fault.message in str(error.value)
    return fault, fault.message


def test_a_read_past_the_end_names_the_tensor_the_line_and_the_thread(
    faults: ModuleType, device: emulator.Runtime
) -> None:
    x, y = torch.zeros(50), torch.zeros(64)
    with pytest.raises(RuntimeError) as error:
        faults.read_past(x, y, 0, 64)
    fault, message = _fault(device, error)
    assert (fault.kind, fault.thread, fault.block) == ("out of bounds (global)", (50, 0, 0), (0, 0, 0))
    place = f"{_line('past')} by thread (50,0,0) of block (0,0,0)"
    assert message == f"out-of-bounds global read of 4 bytes at {place}: 0 bytes past the end of 'x' (200 bytes)"


def test_a_read_before_the_start_says_how_far(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match=r"12 bytes before the start of 'x'"):
        faults.read_past(torch.zeros(50), torch.zeros(64), -3, 64)


def test_a_write_names_thread_and_block_in_all_dimensions(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError) as error:
        faults.write_in_block(torch.zeros(10), 10)
    fault, message = _fault(device, error)
    assert (fault.thread, fault.block) == ((5, 3, 0), (2, 0, 0))
    assert message.startswith(f"out-of-bounds global write of 4 bytes at {_line('store2')} by thread (5,3,0)")


def test_a_write_through_a_const_pointer_is_refused(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match="'y' is passed as a const pointer, so it must not be written") as error:
        faults.write_const(torch.zeros(10))
    assert _fault(device, error)[0].kind == "read-only"


def test_a_null_pointer_is_called_one(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match=r"a null pointer plus 12 bytes"):
        faults.write_null()
    device.reset()
    with pytest.raises(RuntimeError, match=r"a null pointer minus 8 bytes"):
        faults.read_past(None, torch.zeros(64), -2, 1)


@pytest.mark.parametrize(("at", "offset"), [(1, 128), (-1, -4)])
def test_shared_memory_has_ends(faults: ModuleType, device: emulator.Runtime, at: int, offset: int) -> None:
    with pytest.raises(RuntimeError) as error:
        faults.read_shared(torch.zeros(32), at)
    fault, message = _fault(device, error)
    thread = 31 if at > 0 else 0
    assert (fault.kind, fault.thread) == ("out of bounds (shared)", (thread, 0, 0))
    assert f"offset {offset}, the block has 128 bytes of shared memory" in message
    assert _line("stage") in message


def test_an_index_beyond_a_local_array_is_found(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match="an array index is out of range") as error:
        faults.index_local(torch.zeros(6), 4000)
    assert _line("local") in _fault(device, error)[1]


def test_a_misaligned_vector_says_by_how_much(faults: ModuleType, device: emulator.Runtime) -> None:
    # Memory of 64-byte alignment whatever torch does.
    base = torch.zeros(64)
    x = base[(-(base.data_ptr() // 4)) % 16 :][:16]
    with pytest.raises(RuntimeError) as error:
        faults.read_misaligned(x, torch.zeros(2))
    fault, message = _fault(device, error)
    assert fault.kind == "misaligned"
    assert f"{_line('wide')} by thread (0,0,0)" in message
    assert "the address must be a multiple of 16, it is 4 bytes beyond one" in message


def test_an_endless_loop_ends_at_the_time_limit(faults: ModuleType, device: emulator.Runtime) -> None:
    device.time_limit(0.5)
    with pytest.raises(RuntimeError, match="an endless loop") as error:
        faults.wait_for_ever(torch.zeros(1, dtype=torch.int32))
    fault, message = _fault(device, error)
    assert fault.kind == "timeout"
    assert _line("spin") in message


def test_a_missing_barrier_shows_under_some_order_of_warps(faults: ModuleType, device: emulator.Runtime) -> None:
    x = torch.arange(128.0)
    wrong = {True: 0, False: 0}
    for wait in wrong:
        for seed in range(4):
            device.schedule(seed)
            y = torch.zeros(128)
            faults.reverse(x, y, wait)
            wrong[wait] += not torch.equal(y, x.flip(0))
    assert wrong == {True: 0, False: 4}


def test_a_missing_wait_for_an_asynchronous_copy_shows(faults: ModuleType) -> None:
    x, waited, hasty = torch.arange(128.0), torch.zeros(32), torch.zeros(32)
    faults.copy_async(x, waited, True)
    faults.copy_async(x, hasty, False)
    assert torch.equal(waited, x[::4])
    assert not torch.equal(hasty, x[::4])


def test_an_assertion_is_quoted(faults: ModuleType, device: emulator.Runtime) -> None:
    x = torch.zeros(32, dtype=torch.int32)
    x[20] = -1
    with pytest.raises(RuntimeError) as error:
        faults.assert_positive(x)
    fault, message = _fault(device, error)
    assert (fault.kind, fault.thread) == ("assert", (20, 0, 0))
    assert "assertion `x[threadIdx.x] >= 0` failed" in message


def test_a_trap_names_its_thread(faults: ModuleType, device: emulator.Runtime) -> None:
    x = torch.zeros(32, dtype=torch.int32)
    x[7] = -1
    with pytest.raises(RuntimeError) as error:
        faults.trap_negative(x)
    fault, message = _fault(device, error)
    assert (fault.kind, fault.thread) == ("trap", (7, 0, 0))
    assert message == f"trap instruction reached at {_line('stopped')} by thread (7,0,0) of block (0,0,0)"


def test_a_deadlock_says_who_waits_where(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match="deadlock") as error:
        faults.diverge_at_barrier(torch.zeros(64))
    message = _fault(device, error)[1]
    assert f"40 threads wait at the barrier (__syncthreads) at {_line('one')}" in message
    assert f"24 threads wait at the warp-level operation (shuffle, vote, ...) at {_line('other')}" in message


def test_a_shuffle_that_its_partners_never_reach_is_a_deadlock(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError) as error:
        faults.shuffle_alone(torch.zeros(32, dtype=torch.int32))
    fault, message = _fault(device, error)
    assert fault.kind == "deadlock"
    assert f"4 threads wait at the warp-level operation (shuffle, vote, ...) at {_line('shuffle')}" in message
    assert "28 threads wait at the barrier (__syncthreads)" in message


def test_a_lane_that_a_mask_does_not_name_is_named(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError, match="whose member mask does not name it") as error:
        faults.shuffle_unnamed(torch.zeros(32, dtype=torch.int32))
    assert f"{_line('named')} by thread (16,0,0)" in _fault(device, error)[1]


def test_recursion_without_end_overflows_the_stack(faults: ModuleType, device: emulator.Runtime) -> None:
    y = torch.ones(4, dtype=torch.int32)
    faults.recurse(y, 20)
    with pytest.raises(RuntimeError, match="stack overflow"):
        faults.recurse(torch.ones(4, dtype=torch.int32), 100000)


def test_an_instruction_that_is_lacking_is_named_with_its_line(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError) as error:
        faults.use_tensor_map(torch.zeros(128))
    fault, message = _fault(device, error)
    assert fault.kind == "unsupported"
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    assert message == f"{copy} (at {_line('tensor')}): not supported on the emulated device"


def test_warpgroup_instructions_are_named_before_anything_runs() -> None:
    text = """
    .version 9.0
    .target sm_90a
    .address_size 64
    .visible .entry multiply() {
      .loc 1 42 7
      wgmma.fence.sync.aligned;
      ret;
    }
    .file 1 "/tmp/build/kernels/gemm.cu"
    """
    module = emulator.load_ptx(text)
    refusal = "wgmma.fence.sync.aligned (at kernels/gemm.cu:42): not supported on the emulated device"
    assert module.kernels["multiply"].unsupported == refusal
    with pytest.raises(emulator.LaunchFault, match=r"wgmma\.fence\.sync\.aligned") as error:
        emulator.launch(module, "multiply", (1,), (128,), [])
    assert error.value.fault.kind == "unsupported"


@pytest.mark.parametrize("launcher", ["use_cluster", "launch_cluster"])
def test_clusters_are_refused_by_name(faults: ModuleType, device: emulator.Runtime, launcher: str) -> None:
    with pytest.raises(RuntimeError, match=r"thread block clusters.*not supported on the emulated device") as error:
        getattr(faults, launcher)(torch.zeros(4))
    assert _fault(device, error)[0].kind == "unsupported"


def test_a_runtime_function_that_is_lacking_is_named(faults: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="cudaStreamBeginCapture: not supported on the emulated device"):
        faults.begin_capture()


@pytest.mark.parametrize(
    ("kernel", "blocks", "threads", "shared"),
    [(0, 1, 2048, 0), (0, 0, 32, 0), (0, 1, 0, 0), (0, 1, 32, 100 * 1024), (1, 1, 65, 0)],
    ids=["threads", "empty grid", "empty block", "shared memory", "launch bounds"],
)
def test_a_launch_that_a_device_refuses_gives_the_devices_error(
    faults: ModuleType, kernel: int, blocks: int, threads: int, shared: int
) -> None:
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):  # as CUDA 13 does on an H200
        faults.launch(torch.zeros(128), kernel, blocks, threads, shared)
    faults.launch(torch.zeros(128), kernel, 1, 64, 0)  # and the device goes on


def test_a_copy_beyond_an_allocation_is_an_invalid_value(faults: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):
        faults.copy_over()


def test_a_fault_ends_the_context_until_it_is_reset(faults: ModuleType, device: emulator.Runtime) -> None:
    with pytest.raises(RuntimeError):
        faults.write_null()
    with pytest.raises(RuntimeError, match="an earlier launch failed and ended the device's context"):
        faults.launch(torch.zeros(4), 0, 1, 32, 0)
    device.reset()
    y = torch.zeros(4)
    faults.launch(y, 0, 4, 32, 0)
    assert y.tolist() == [1, 1, 1, 1]
