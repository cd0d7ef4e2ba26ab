"""Top-k by released score, and its forecast against releases drawn by the real sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scoreshield.errors import InputRejected, ParameterError
from scoreshield.noise.sampler import TILE
from scoreshield.privacy.sensitivity import FULL_RANGE, ScoreRange
from scoreshield.utility.ranking import expected_overlap, top_k
from tests.harness.gaussian import standard_normal

FloatArray = NDArray[np.float64]


def overlaps(
    clean: FloatArray, sigma: float, k: int, score_range: ScoreRange, tiles: int
) -> FloatArray:
    """Overlap of the true and the released top-k in many releases, ties broken at random."""
    generator = np.random.default_rng(0)
    best = set(top_k(clean, k).tolist())
    found = []
    for z in standard_normal(tiles, "ranking").reshape(-1, TILE):
        released = np.clip(clean + sigma * z[: clean.size], score_range.low, score_range.high)
        order = np.lexsort((generator.random(clean.size), -released))
        found.append(len(best.intersection(order[:k].tolist())))
    return np.array(found, dtype=np.float64)


def scores(n: int) -> FloatArray:
    return np.clip(np.random.default_rng(n).normal(0.2, 0.25, n), -1, 1)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 3.0])
@pytest.mark.parametrize(
    ("n", "k", "score_range"),
    [(200, 10, FULL_RANGE), (200, 1, FULL_RANGE), (30, 25, FULL_RANGE), (60, 12, ScoreRange(0, 1))],
)
def test_the_forecast_matches_simulated_releases(
    n: int, k: int, score_range: ScoreRange, sigma: float
) -> None:
    clean = np.clip(scores(n), score_range.low, score_range.high)
    drawn = overlaps(clean, sigma, k, score_range, tiles=2)
    forecast = expected_overlap(clean, sigma, k, score_range)
    error = max(drawn.std(), 1e-2) / math.sqrt(drawn.size)
    assert abs(drawn.mean() - forecast.expected_overlap) < 4.5 * error
    assert forecast.share == forecast.expected_overlap / k
    assert forecast.chance_overlap == pytest.approx(k * k / n)


def test_two_records_by_hand() -> None:
    """Unclipped, the better of two stays ahead with probability Φ(gap/(√2σ))."""
    for gap in (0.0, 0.01, 0.05):
        exact = 0.5 * math.erfc(-gap / 0.02 / 2)
        forecast = expected_overlap([0.1, 0.1 - gap], 0.02, 1)
        assert forecast.expected_overlap == pytest.approx(exact, abs=2e-5)


def test_the_forecast_ends_in_certainty_and_in_chance() -> None:
    clean = np.linspace(-0.9, 0.9, 50)
    assert expected_overlap(clean, 1e-4, 7).expected_overlap == pytest.approx(7, abs=1e-5)
    noisy = expected_overlap(clean, 1e6, 7)
    assert noisy.expected_overlap == pytest.approx(noisy.chance_overlap, rel=1e-3)
    # All or most records: the last places are filled at random from the lower end.
    assert expected_overlap(clean, 2.0, 50).expected_overlap == pytest.approx(50, abs=1e-4)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=25), st.floats(0.005, 50), st.data())
@settings(max_examples=50, deadline=None)
def test_the_forecast_lies_between_chance_and_certainty(
    clean: list[float], sigma: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(clean)))
    forecast = expected_overlap(clean, sigma, k)
    assert forecast.chance_overlap - 1e-4 <= forecast.expected_overlap <= k


def test_a_large_gallery_is_forecast() -> None:
    """100,000 records; the first two values are those of 120 simulated releases, ±0.3."""
    clean = 0.2 + 0.12 * np.random.default_rng(0).standard_normal(100_000)
    found = [expected_overlap(clean, sigma, 10).expected_overlap for sigma in (0.02, 0.1, 1.0)]
    assert found[0] == pytest.approx(6.93, abs=0.3)
    assert found[1] == pytest.approx(1.69, abs=0.3)
    assert 10 * 10 / 100_000 < found[2] < 0.01


def test_top_k_by_hand() -> None:
    table = np.array([[0.1, 1.0, 0.3, 1.0, 1.0], [0.5, 0.4, 0.3, 0.2, 0.1]])
    assert top_k(table[0], 2).tolist() == [1, 3]
    assert top_k(table[0], 5).tolist() == [1, 3, 4, 2, 0]
    assert top_k(table, 3).tolist() == [[1, 3, 4], [0, 1, 2]]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_top_k_is_a_stable_sort(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_k(np.array(values, dtype=np.float32), k).tolist() == expected


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_outside_the_gallery_is_refused(k: int) -> None:
    for refuses in (top_k, lambda scores, k: expected_overlap(scores, 1.0, k)):
        with pytest.raises(ParameterError, match=rf"\[1, 3\].*found {k}"):
            refuses([0.1, 0.2, 0.3], k)


def test_bad_scores_are_refused() -> None:
    with pytest.raises(InputRejected, match="expected finite"):
        top_k([0.1, math.nan], 1)
    with pytest.raises(InputRejected, match="clean scores: none"):
        expected_overlap([], 1.0, 1)
    with pytest.raises(ParameterError, match="sigma must be positive"):
        expected_overlap([0.1], 0.0, 1)
