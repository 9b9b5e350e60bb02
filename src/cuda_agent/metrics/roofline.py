"""The roofline floor: no correct kernel runs faster than its bytes allow.

Source: Williams, Waterman and Patterson, "Roofline", CACM 2009; the memory side of it.
"""

from __future__ import annotations


def floor_us(*, moved_bytes: float, bytes_per_us: float) -> float:
    """Return the time to move the bytes, microseconds.

    Moving 4.3 GB at 4.3e6 bytes/us (4.3 TB/s) takes 1000 us.

    Args:
        moved_bytes: the fewest bytes that must cross device memory.
        bytes_per_us: measured memory bandwidth.

    Raises:
        ValueError: the amount is negative or the rate is not positive.
    """
    if moved_bytes < 0:
        raise ValueError(f"bytes can't be negative, got {moved_bytes}")
    if bytes_per_us <= 0:
        raise ValueError(f"a rate must be positive, got {bytes_per_us} bytes/us")
    return moved_bytes / bytes_per_us
