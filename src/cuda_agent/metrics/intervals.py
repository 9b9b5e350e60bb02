"""Medians and ratios of medians with 95 % bootstrap intervals, for samples taken in rounds.

Samples of one round are taken back to back and share the device's clock, temperature and neighbours, so calls
of one round are not independent. Both estimators therefore resample in two stages: rounds first, then calls
within each drawn round. A ratio draws the same rounds for both sides, so what changed from round to round
cancels. Two-stage draws err on the wide side when rounds do not differ.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap", chapters 13 (percentile interval) and 8
(resampling structured data).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cuda_agent.records.timing import Interval, Samples

RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A point estimate with the bootstrap draws behind it, so that estimates can be combined."""

    point: float
    draws: Floats
    """[B] bootstrap replicates of the statistic."""

    def interval(self) -> Interval:
        """Return the point and the 2.5 % and 97.5 % quantiles of the draws, which always hold the point."""
        low, high = np.quantile(self.draws, (0.025, 0.975))
        return Interval(point=self.point, low=min(float(low), self.point), high=max(float(high), self.point))

    def times(self, other: Estimate) -> Estimate:
        """Return the product of two independently measured quantities.

        The draws are multiplied pairwise, so for two factors of relative error 3 % and 4 % the product's is
        5 %, not the 7 % of interval arithmetic.

        Raises:
            ValueError: the two have different numbers of draws.
        """
        if len(self.draws) != len(other.draws):
            raise ValueError(
                f"estimates with {len(self.draws)} and {len(other.draws)} draws can't be combined; "
                "make both with the same `resamples`"
            )
        return Estimate(point=self.point * other.point, draws=self.draws * other.draws)


def median(rounds: Floats, *, seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Estimate the median of samples taken in rounds.

    Args:
        rounds: [R, n] samples, one row a round.
        seed: of the resampling; the same seed gives the same interval.
        resamples: number of bootstrap draws B.

    Raises:
        ValueError: `rounds` is empty or not two-dimensional, or holds a value that is not finite.
    """
    _check(rounds, "samples")
    generator = np.random.default_rng(seed)
    drawn = _draw_rounds(len(rounds), resamples, generator)
    return Estimate(point=float(np.median(rounds)), draws=_medians(rounds, drawn, generator))


def ratio_of_medians(numerator: Floats, denominator: Floats, *, seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Estimate median(numerator) / median(denominator) of samples taken in interleaved rounds.

    Args:
        numerator: [R, n] samples; row r was taken next to row r of `denominator`.
        denominator: [R, m] positive samples.
        seed: of the resampling.
        resamples: number of bootstrap draws B.

    Returns:
        The ratio, such as 2.0 for medians of 10 and 5, with draws that use the same rounds on both sides.

    Raises:
        ValueError: the two have different numbers of rounds, or a sample is not finite or not positive.
    """
    _check(numerator, "numerator")
    _check(denominator, "denominator")
    if len(numerator) != len(denominator):
        raise ValueError(
            f"a paired ratio needs as many rounds on both sides, got {len(numerator)} and {len(denominator)}"
        )
    if numerator.min() <= 0 or denominator.min() <= 0:
        raise ValueError("a ratio of times needs positive samples; a time of 0 or less was not measured")
    generator = np.random.default_rng(seed)
    drawn = _draw_rounds(len(numerator), resamples, generator)
    above = _medians(numerator, drawn, generator)
    below = _medians(denominator, drawn, generator)
    return Estimate(point=float(np.median(numerator) / np.median(denominator)), draws=above / below)


def in_rounds(samples: Sequence[float], per_round: int) -> Floats:
    """Return samples in the order taken as [R, per_round].

    Raises:
        ValueError: the number of samples is not a multiple of `per_round`.
    """
    if per_round < 1 or len(samples) % per_round:
        raise ValueError(f"{len(samples)} samples are not whole rounds of {per_round}")
    return np.asarray(samples, dtype=np.float64).reshape(-1, per_round)


def device_rounds(samples: Samples) -> Floats:
    """Return the device times of `samples` as [R, n], microseconds."""
    return in_rounds(samples.device_us, samples.per_round)


def wall_rounds(samples: Samples) -> Floats:
    """Return the wall times of `samples` as [R, n], microseconds."""
    return in_rounds(samples.wall_us, samples.per_round)


def _draw_rounds(count: int, resamples: int, generator: np.random.Generator) -> NDArray[np.int64]:
    return generator.integers(0, count, size=(resamples, count))


def _medians(rounds: Floats, drawn: NDArray[np.int64], generator: np.random.Generator) -> Floats:
    resamples, count = drawn.shape
    calls = generator.integers(0, rounds.shape[1], size=(resamples, count, rounds.shape[1]))
    values = rounds[drawn[:, :, None], calls]
    medians: Floats = np.median(values.reshape(resamples, -1), axis=1)
    return medians


def _check(rounds: Floats, name: str) -> None:
    if rounds.ndim != 2 or rounds.size == 0:
        raise ValueError(
            f"{name}: expected samples as [rounds, calls] with at least one of each, got shape {rounds.shape}"
        )
    if not np.isfinite(rounds).all():
        raise ValueError(f"{name}: a sample is not finite; a failed call has no time and can't be a sample")
