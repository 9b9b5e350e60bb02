"""Measured times: samples first, statistics derived from them elsewhere (`metrics`)."""

from __future__ import annotations

from typing import Literal

import msgspec

Contender = Literal["candidate", "eager", "compiled", "max-autotune"]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Raw samples of one contender in one measuring run, in the order taken."""

    contender: Contender
    case: str
    device_us: tuple[float, ...]
    """Per call, cold L2, from an event pair around the call; microseconds."""
    wall_us: tuple[float, ...]
    """Per call, host clock from call to device idle, same calls; microseconds."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A point estimate with a 95 % bootstrap interval."""

    point: float
    low: float
    high: float


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """GPU state read through NVML around a measurement."""

    sm_clock_mhz: int
    memory_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle_reasons: tuple[str, ...]


class ContenderTime(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of one contender."""

    contender: Contender
    device_median_us: Interval
    wall_median_us: Interval
    from_cache: bool
    """True when the samples come from the baseline cache rather than this run."""


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """Baseline time over candidate time, device time; above 1 the candidate is faster."""

    baseline: Literal["eager", "compiled", "max-autotune"]
    device: Interval
    wall: Interval
    how: str
    """`side by side`, or how a cached ratio was combined."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What the profile gate measured."""

    case: str
    times: tuple[ContenderTime, ...]
    speedups: tuple[Speedup, ...]
    samples: tuple[Samples, ...]
    before: DeviceState | None
    """None where NVML can't be read."""
    after: DeviceState | None
    baseline_failures: dict[str, str]
    """Baselines that could not be measured, with the reason, such as torch.compile raising."""
