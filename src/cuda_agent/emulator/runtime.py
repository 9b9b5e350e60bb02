"""Attaches the emulated device to this process, so that a candidate's host code finds a CUDA runtime.

Call `attach()` before the candidate's shared object is loaded. The object is linked against the core and must
be opened with `RTLD_DEEPBIND`: where torch has brought the real CUDA runtime, ours must win.
"""

from __future__ import annotations

import ctypes
from functools import cache

from cuda_agent.emulator.module import Fault, core, last_fault, load_ptx
from cuda_agent.emulator.ptx import PtxSyntaxError

UNSUPPORTED = 8

EMULATED_NVCC_FLAGS = (
    "-cudart",
    "none",
    "--no-compress",
    "-gencode",
    "arch=compute_90a,code=compute_90a",
    "-lineinfo",
)
"""What nvcc needs for the emulated device: PTX only, uncompressed, with source lines."""

_LOADER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong)


class Runtime:
    """The emulated device in this process."""

    def schedule(self, seed: int) -> None:
        """Choose the order of a block's warps: 0 ascending, 1 descending, else pseudo-random."""
        core().ca_set_schedule(seed)

    def threads(self, count: int) -> None:
        """Run blocks on `count` threads; 0 means one per core."""
        core().ca_set_threads(count)

    def time_limit(self, seconds: float) -> None:
        """Stop a launch after `seconds` of wall time."""
        core().ca_set_time_limit(seconds)

    def idle(self, on: bool) -> None:
        """Let launches succeed without doing anything, to see what depends on them."""
        core().ca_set_idle(on)

    def last_fault(self) -> Fault | None:
        """Return what stopped the device, None while it works."""
        return last_fault()

    def reset(self) -> None:
        """Forget a fault, as a fresh context would."""
        core().cuda_agent_reset()

    def counters(self) -> dict[str, int]:
        """Return how many launches ran and how many warp instructions they took."""
        return {
            "launches": core().ca_counter_launches(),
            "warp_instructions": core().ca_counter_instructions(),
        }


@cache
def attach() -> Runtime:
    """Load the emulated device into this process; building its core first where that was never done."""
    core().cuda_agent_set_loader(_CALLBACK)
    return Runtime()


def _load_text(address: int, size: int) -> int | None:
    # Called from C++ at a module's first launch; an exception must not cross the boundary.
    text = ctypes.string_at(address, size).decode(errors="replace")
    try:
        return load_ptx(text).handle
    except PtxSyntaxError as error:
        core().ca_set_fault(UNSUPPORTED, b"", f"the PTX can't be read by the emulated device: {error}".encode())
        return None


_CALLBACK = _LOADER(_load_text)  # kept alive here: the core holds only its address
