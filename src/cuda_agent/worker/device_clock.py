"""Device and host clocks of a stopwatch process, taken from torch before anything else could replace them."""

from __future__ import annotations

import time
from typing import Any

import torch

SMALLEST_SCRATCH_BYTES = 256 << 20
"""Bytes written to empty the L2 cache: at least this, and four times the cache."""
UNKNOWN_L2_BYTES = 64 << 20
RESOLUTION_US = 0.5
"""A shorter time between two events counts as this. Source: cudaEventElapsedTime, "resolution of around 0.5 us"."""

now = time.perf_counter


class CudaClock:
    """Times and the L2 cache of one CUDA device.

    Every call goes through a function of torch's C library that was looked up when this was made; assigning to
    `torch.cuda.synchronize`, `torch.cuda.Event.elapsed_time` or `time.perf_counter` changes nothing here and shows in
    `changed`.
    """

    def __init__(self, device: str) -> None:
        """Make the CUDA context."""
        library: Any = torch._C
        self._device = torch.device(device)
        torch.cuda.set_device(self._device)
        torch.empty(1, device=self._device)
        self._event = library._CudaEventBase
        self._synchronize = library._cuda_synchronize
        self._sleep = library._cuda_sleep
        self._cycles_per_us = 0.0
        self._raw_stream = library._cuda_getCurrentRawStream
        self._index = torch.cuda.current_device()
        self._stream: Any = torch.cuda.current_stream(self._device)
        self._names = _clock_functions()
        properties: Any = torch.cuda.get_device_properties(self._device)
        self.l2_bytes = int(getattr(properties, "L2_cache_size", 0)) or UNKNOWN_L2_BYTES
        uuid = getattr(properties, "uuid", None)
        self.gpu_uuid = "" if uuid is None else f"GPU-{uuid}"
        size = max(SMALLEST_SCRATCH_BYTES, 4 * self.l2_bytes)
        self._scratch = torch.empty(size, dtype=torch.uint8, device=self._device)

    def free_bytes(self) -> int:
        """Return the device memory that nobody has."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def idle(self) -> None:
        """Wait until the device has nothing to do, on any stream."""
        self._synchronize()

    def fill(self) -> None:
        """Enqueue writes that push everything out of the L2 cache."""
        self._scratch.fill_(1)

    def delay(self, us: float) -> None:
        """Enqueue about `us` microseconds of waiting, so that what is enqueued next does not start at once."""
        if not self._cycles_per_us:
            cycles = 500_000
            for _ in range(2):  # the first one loads the kernel
                begin = self.mark()
                self._sleep(cycles)
                self._cycles_per_us = cycles / self.between_us(begin, self.mark())
        self._sleep(int(us * self._cycles_per_us))

    def fill_bytes_per_us(self) -> float:
        """Measure the bandwidth of `fill`."""
        self.fill()
        begin = self.mark()
        self.fill()
        return self._scratch.numel() / self.between_us(begin, self.mark())

    def mark(self) -> Any:
        """Enqueue an event on the stream that was current when this clock was made."""
        event = self._event(enable_timing=True)
        event.record(self._stream)
        return event

    def reached(self, mark: Any) -> bool:
        """Return whether the device has come to a mark."""
        return bool(mark.query())

    def between_us(self, begin: Any, end: Any) -> float:
        """Wait for `end` and return the time between two marks, microseconds."""
        end.synchronize()
        return max(RESOLUTION_US, float(begin.elapsed_time(end)) * 1e3)

    def changed(self) -> tuple[str, ...]:
        """Name what is no longer as it was: clock functions, the current stream."""
        found = [name for name, function in _clock_functions().items() if function is not self._names[name]]
        if self._raw_stream(self._index) != self._stream.cuda_stream:
            found.append("torch's current stream")
        return tuple(found)


def _clock_functions() -> dict[str, Any]:
    return {
        "torch.cuda.synchronize": torch.cuda.synchronize,
        "torch.cuda.Event": torch.cuda.Event,
        "torch.cuda.Event.record": torch.cuda.Event.record,
        "torch.cuda.Event.synchronize": torch.cuda.Event.synchronize,
        "torch.cuda.Event.elapsed_time": torch.cuda.Event.elapsed_time,
        "time.perf_counter": time.perf_counter,
        "time.perf_counter_ns": time.perf_counter_ns,
        "time.monotonic": time.monotonic,
        "time.time": time.time,
    }
