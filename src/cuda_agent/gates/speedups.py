"""From samples to speed-ups: side by side where contenders took turns, combined where baselines come from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cuda_agent.metrics.intervals import Estimate, device_rounds, median, ratio_of_medians, wall_rounds
from cuda_agent.records.stopwatch import BaselineRun
from cuda_agent.records.timing import ContenderTime, Samples, Speedup


def speedups(candidate: Samples, beside: Sequence[Samples], cached: BaselineRun | None, *, seed: int) -> list[Speedup]:
    """Return the candidate's speed-up over every baseline.

    With cached baselines, compiled / candidate is (eager / candidate, now) x (compiled / eager, side by side when the
    baselines were measured). Eager at 10 us and the candidate at 5 us now, eager at 12 and compiled at 9 then:
    2 x 0.75 = 1.5.

    Args:
        candidate: its samples.
        beside: samples of the baselines that took turns with it; eager among them.
        cached: baselines of an earlier run; those among `beside` are not taken from it.
        seed: of the bootstrap.
    """
    found = [_side_by_side(other, candidate, seed) for other in beside]
    if cached is None:
        return found
    measured = {other.contender for other in beside}
    now = next(other for other in beside if other.contender == "eager")
    then = next(old for old in cached.samples if old.contender == "eager")
    for old in cached.samples:
        if old.contender == "candidate" or old.contender == "eager" or old.contender in measured:
            continue
        ratios: list[Estimate] = []
        for rounds in (device_rounds, wall_rounds):
            today = ratio_of_medians(rounds(now), rounds(candidate), seed=_seed(seed, "eager"))
            stored = ratio_of_medians(rounds(old), rounds(then), seed=_seed(seed, f"cached {old.contender}"))
            ratios.append(today.times(stored))
        found.append(
            Speedup(
                baseline=old.contender,
                device=ratios[0].interval(),
                wall=ratios[1].interval(),
                how=f"eager side by side, times {old.contender} over eager side by side on {cached.created[:10]}",
            )
        )
    return found


def contender_time(samples: Samples, *, setup_seconds: float, seed: int) -> ContenderTime:
    """Return the summary of one contender."""
    of_contender = _seed(seed, f"median {samples.contender}")
    return ContenderTime(
        contender=samples.contender,
        calls=len(samples.device_us),
        setup_seconds=setup_seconds,
        device_median_us=median(device_rounds(samples), seed=of_contender).interval(),
        wall_median_us=median(wall_rounds(samples), seed=of_contender).interval(),
        from_cache=samples.from_cache,
    )


def _side_by_side(other: Samples, candidate: Samples, seed: int) -> Speedup:
    if other.contender == "candidate":
        raise ValueError("a candidate is no baseline of itself")
    of_pair = _seed(seed, other.contender)
    return Speedup(
        baseline=other.contender,
        device=ratio_of_medians(device_rounds(other), device_rounds(candidate), seed=of_pair).interval(),
        wall=ratio_of_medians(wall_rounds(other), wall_rounds(candidate), seed=of_pair).interval(),
        how="side by side",
    )


def _seed(seed: int, label: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{label}".encode()).digest()[:6], "big")
