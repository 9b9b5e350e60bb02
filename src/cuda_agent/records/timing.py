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
    """Per call, cold L2, from an event pair around the call, enqueued while the device waits; microseconds."""
    wall_us: tuple[float, ...]
    """Per call, host clock from call to device idle, cold L2; calls of their own, since an idle device at the
    start would put launch latency into the device time. As many as `device_us`; microseconds."""
    exposed: int = 0
    """How many of `device_us` hold some of the host's launch latency, since the device began the call before the host
    had enqueued it whole. None where covering it worked; all where a call itself waits for the device."""
    per_round: int = 1
    """Calls of one turn of the contender; samples of one turn are not independent of each other."""
    steady: bool = True
    """Whether call times had settled when the warm-up ended."""
    from_cache: bool = False
    """True when they were taken in an earlier run, side by side with the other cached ones."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A point estimate with a 95 % bootstrap interval."""

    point: float
    low: float
    high: float


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """GPU state read through NVML around a measurement; None where the driver does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] | None
    """NVML's names of what holds the clocks down now, such as `sw power cap`; empty when nothing does."""


class ContenderTime(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of one contender."""

    contender: Contender
    calls: int
    """Timed calls behind each median."""
    setup_seconds: float
    """Wall time of building, compiling and warming up the contender, outside all other times."""
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
