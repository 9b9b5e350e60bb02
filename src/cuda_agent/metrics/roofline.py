"""The roofline floor: no correct kernel runs faster than its bytes and its arithmetic allow.

Source: Williams, Waterman and Patterson, "Roofline", CACM 2009.
"""

from __future__ import annotations


def floor_us(
    *, moved_bytes: float, bytes_per_us: float, flops: float = 0.0, flops_per_us: float | None = None
) -> float:
    """Return the larger of the time to move the bytes and the time to do the arithmetic, microseconds.

    Moving 4.3 GB at 4.3e6 bytes/us (4.3 TB/s) takes 1000 us.

    Args:
        moved_bytes: the fewest bytes that must cross device memory.
        bytes_per_us: measured memory bandwidth.
        flops: the fewest floating-point operations.
        flops_per_us: rate of the unit that does them; None leaves arithmetic out of account.

    Raises:
        ValueError: an amount is negative or a rate is not positive.
    """
    if moved_bytes < 0 or flops < 0:
        raise ValueError(f"bytes and operations can't be negative, got {moved_bytes} and {flops}")
    if bytes_per_us <= 0 or (flops_per_us is not None and flops_per_us <= 0):
        raise ValueError(f"rates must be positive, got {bytes_per_us} bytes/us and {flops_per_us} flops/us")
    arithmetic = flops / flops_per_us if flops_per_us is not None else 0.0
    return max(moved_bytes / bytes_per_us, arithmetic)
