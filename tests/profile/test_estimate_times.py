"""Times and speed-ups are estimated with intervals that mean what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.metrics.intervals import Estimate, in_rounds, median, ratio_of_medians
from cuda_agent.metrics.roofline import floor_us

times = st.floats(min_value=0.5, max_value=1e5)


def grids(rounds: int = 4, calls: int = 3) -> st.SearchStrategy[np.ndarray]:
    row = st.lists(times, min_size=calls, max_size=calls)
    return st.lists(row, min_size=rounds, max_size=rounds).map(np.array)


def test_median_of_hand_picked_samples() -> None:
    samples = in_rounds([1.0, 9.0, 2.0, 8.0, 3.0, 100.0], per_round=2)
    assert median(samples, seed=0).point == 5.5  # (3 + 8) / 2; the outlier does not move it


def test_constant_samples_have_an_interval_of_no_width() -> None:
    interval = median(np.full((5, 4), 7.0), seed=0).interval()
    assert (interval.point, interval.low, interval.high) == (7.0, 7.0, 7.0)


def test_bootstrap_of_two_single_call_rounds_matches_the_exact_distribution() -> None:
    # Rounds {1} and {3}: a draw of two is (1,1), (1,3), (3,1) or (3,3), so medians 1, 2, 2, 3.
    draws = median(np.array([[1.0], [3.0]]), seed=3, resamples=20_000).draws
    share = [float(np.mean(draws == value)) for value in (1.0, 2.0, 3.0)]
    assert share == pytest.approx([0.25, 0.5, 0.25], abs=0.015)


def test_ratio_of_hand_picked_medians() -> None:
    eager = np.array([[10.0, 12.0], [11.0, 13.0]])
    candidate = np.array([[5.0, 6.0], [5.0, 7.0]])
    assert ratio_of_medians(eager, candidate, seed=0).point == pytest.approx(11.5 / 5.5)


def test_drift_shared_by_both_sides_cancels_in_the_paired_ratio() -> None:
    # The device slows down by half over the run; both sides see it, so the ratio is exactly 2 in every draw.
    drift = np.linspace(1.0, 1.5, 10)[:, None]
    interval = ratio_of_medians(20.0 * drift, 10.0 * drift, seed=1).interval()
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))
    unpaired = median(20.0 * drift, seed=1).interval()
    assert unpaired.high / unpaired.low > 1.1


def test_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    samples = np.random.default_rng(0).lognormal(3, 0.1, size=(6, 5))
    assert median(samples, seed=1).interval() == median(samples, seed=1).interval()
    assert median(samples, seed=1).interval() != median(samples, seed=2).interval()


def test_independent_errors_combine_in_quadrature() -> None:
    generator = np.random.default_rng(0)
    three = Estimate(2.0, 2.0 * np.exp(generator.normal(0, 0.03, 50_000)))
    four = Estimate(5.0, 5.0 * np.exp(generator.normal(0, 0.04, 50_000)))
    product = three.times(four)
    assert product.point == 10.0
    assert float(np.std(np.log(product.draws))) == pytest.approx(0.05, rel=0.02)


def test_estimates_of_different_numbers_of_draws_are_not_combined() -> None:
    with pytest.raises(ValueError, match="3 and 2 draws"):
        Estimate(1.0, np.ones(3)).times(Estimate(1.0, np.ones(2)))


@settings(max_examples=30, deadline=None)
@given(grids(), st.integers(0, 2**32 - 1))
def test_an_interval_holds_its_point_and_lies_within_the_samples(samples: np.ndarray, seed: int) -> None:
    interval = median(samples, seed=seed, resamples=200).interval()
    assert samples.min() <= interval.low <= interval.point <= interval.high <= samples.max()


@settings(max_examples=30, deadline=None)
@given(grids(), grids(), st.floats(0.01, 100))
def test_a_ratio_does_not_depend_on_the_unit(a: np.ndarray, b: np.ndarray, unit: float) -> None:
    plain = ratio_of_medians(a, b, seed=5, resamples=100).interval()
    scaled = ratio_of_medians(a * unit, b * unit, seed=5, resamples=100).interval()
    assert (scaled.point, scaled.low, scaled.high) == pytest.approx((plain.point, plain.low, plain.high))


@pytest.mark.parametrize("sigma_round", [0.0, 0.05])
def test_95_percent_intervals_of_a_ratio_cover_the_truth_at_least_nine_times_in_ten(
    sigma_round: float,
) -> None:
    # 12 rounds of 8 calls, 3 % noise per call, rounds drifting together; the true ratio is 1.10.
    generator = np.random.default_rng(11)
    covered = 0
    for repeat in range(200):
        drift = np.exp(generator.normal(0, sigma_round, (12, 1)))
        baseline = 110.0 * drift * np.exp(generator.normal(0, 0.03, (12, 8)))
        candidate = 100.0 * drift * np.exp(generator.normal(0, 0.03, (12, 8)))
        interval = ratio_of_medians(baseline, candidate, seed=repeat, resamples=300).interval()
        covered += interval.low <= 1.10 <= interval.high
    assert 0.90 <= covered / 200 <= 1.0


def test_intervals_of_a_product_of_two_runs_cover_the_truth_at_least_nine_times_in_ten() -> None:
    generator = np.random.default_rng(12)
    covered = 0
    for repeat in range(200):
        one, two, three, four = (
            centre * np.exp(generator.normal(0, 0.04, (8, 6))) for centre in (110.0, 100.0, 90.0, 100.0)
        )
        product = ratio_of_medians(one, two, seed=2 * repeat, resamples=300).times(
            ratio_of_medians(three, four, seed=2 * repeat + 1, resamples=300)
        )
        covered += product.interval().low <= 0.99 <= product.interval().high
    assert 0.90 <= covered / 200 <= 1.0


@pytest.mark.parametrize(
    ("numerator", "denominator", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 3)), "as many rounds on both sides, got 2 and 3"),
        (np.ones((2, 3)), np.zeros((2, 3)), "positive"),
        (np.array([[math.nan]]), np.ones((1, 1)), "not finite"),
        (np.ones(3), np.ones((3, 1)), "expected samples as"),
    ],
)
def test_what_is_not_a_time_is_refused(numerator: np.ndarray, denominator: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_of_medians(numerator, denominator, seed=0)


def test_samples_that_are_not_whole_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="5 samples are not whole rounds of 2"):
        in_rounds([1.0] * 5, per_round=2)


def test_roofline_floor_is_bytes_over_bandwidth() -> None:
    # 4.3 GB at 4.3 TB/s is 1 ms.
    assert floor_us(moved_bytes=4.3e9, bytes_per_us=4.3e6) == pytest.approx(1000.0)
    assert floor_us(moved_bytes=0, bytes_per_us=4.3e6) == 0
    with pytest.raises(ValueError, match="rate must be positive"):
        floor_us(moved_bytes=1.0, bytes_per_us=0.0)
    with pytest.raises(ValueError, match="can't be negative"):
        floor_us(moved_bytes=-1.0, bytes_per_us=1.0)
