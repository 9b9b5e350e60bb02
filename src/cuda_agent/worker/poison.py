"""Garbage in memory that was not written yet, so that an unwritten output can't look like a result.

On the host, glibc's `M_PERTURB` fills every block that `malloc` and `posix_memalign` hand out, large mapped blocks
too. On a CUDA device, blocks of the sizes that a call is likely to ask for are filled and given back to torch's
caching allocator, and so is every block that lies free in it.
"""

from __future__ import annotations

import ctypes

import torch

_M_PERTURB = -6
_ROUND = 512
"""torch's caching allocator rounds sizes up to this; bytes."""
_SMALL_CLASSES = (512, 2048, 8192, 65536, 1 << 19, 1 << 20, 2 << 20, 8 << 20)
"""Bytes: sizes of workspaces and small results."""


def poison_host(byte: int) -> None:
    """Let fresh host memory hold `byte` (not 0xFF) from now on; 0 ends it."""
    # malloc fills with the complement of the parameter's low byte, free with the byte itself.
    ctypes.CDLL(None).mallopt(_M_PERTURB, byte ^ 0xFF if byte else 0)


def host_poison_works() -> bool:
    """Whether `poison_host` reaches torch's allocations, small and large."""
    poison_host(0xFE)
    try:
        return all(
            bool((torch.empty(count, dtype=torch.uint8) == 0xFE).all()) for count in (24, 4096, 300_000, 1 << 24)
        )
    finally:
        poison_host(0)


def poison_device(device: str, byte: int, sizes: tuple[int, ...]) -> None:
    """Fill the free blocks of torch's allocator on `device`, and fresh ones of about `sizes` bytes, with `byte`.

    Memory that can't be had is left out: a big problem must not fail for its poison.
    """
    free = [
        int(block["size"])
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == torch.device(device).index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    fresh = [-(-size // _ROUND) * _ROUND for size in sizes for _ in range(2)]
    held = []
    for size in [*sorted(free, reverse=True), *fresh, *_SMALL_CLASSES]:
        available, _ = torch.cuda.mem_get_info(device)
        if size in free or available > 4 * size:
            try:
                held.append(torch.full((size,), byte, dtype=torch.uint8, device=device))
            except torch.OutOfMemoryError:
                continue
    torch.cuda.synchronize(device)
    del held


def is_poison(data: torch.Tensor, patterns: tuple[int, ...]) -> torch.Tensor:
    """Return, per row of a `uint8` matrix, whether all bytes are one of `patterns`."""
    found = torch.zeros(data.shape[0], dtype=torch.bool, device=data.device)
    for byte in patterns:
        found |= (data == byte).all(dim=1)
    return found
