"""Means over problems."""

from __future__ import annotations

import math
from collections.abc import Iterable


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values; of 1, 2 and 4 it is 2.

    Raises:
        ValueError: there is no value, or one is not a positive finite number.
    """
    logs = []
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"a geometric mean is over positive finite numbers, got {value!r}")
        logs.append(math.log(value))
    if not logs:
        raise ValueError("a geometric mean needs at least one value, got none")
    return math.exp(math.fsum(logs) / len(logs))
