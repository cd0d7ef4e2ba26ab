"""The data-free forecast against the mechanism it speaks about."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores
from scoreshield.privacy.calibration import compose
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange
from scoreshield.utility.forecast import clipped_errors, forecast_gram, forecast_scores

DELTA = 1e-6


@pytest.mark.parametrize(
    ("n", "epsilon", "adjacency", "score_range"),
    [
        (1797, 8.0, None, FULL_RANGE),
        (1797, 0.5, None, FULL_RANGE),
        (1797, 200.0, None, FULL_RANGE),
        (2, 1.0, None, FULL_RANGE),
        (100_000, 1.0, None, ScoreRange(0, 1)),
        (500, 2.0, Adjacency("shift", 0.4), FULL_RANGE),
        (500, 2.0, Adjacency("output", 30.0), FULL_RANGE),
    ],
)
def test_the_named_epsilon_brings_the_share_to_one(
    n: int, epsilon: float, adjacency: Adjacency | None, score_range: ScoreRange
) -> None:
    forecast = forecast_gram(calibrate_gram(n, 16, epsilon, DELTA, adjacency, score_range))
    there = calibrate_gram(n, 16, forecast.epsilon_for_signal, DELTA, adjacency, score_range)
    assert forecast_gram(there).recoverable_share == pytest.approx(1, abs=1e-3)
    assert forecast.carries_signal == (epsilon > forecast.epsilon_for_signal)


@pytest.mark.parametrize(("n", "epsilon"), [(1797, 8.0), (1797, 0.5), (20_000, 1.0), (2, 0.3)])
def test_the_named_shift_radius_brings_the_share_to_one(n: int, epsilon: float) -> None:
    radius = forecast_gram(calibrate_gram(n, 16, epsilon, DELTA)).shift_radius_for_signal
    assert radius < 2
    there = calibrate_gram(n, 16, epsilon, DELTA, Adjacency("shift", radius))
    assert forecast_gram(there).recoverable_share == pytest.approx(1, abs=1e-3)


def test_a_strong_release_carries_signal_under_any_shift() -> None:
    forecast = forecast_gram(calibrate_gram(1797, 64, 100.0, DELTA))
    assert forecast.shift_radius_for_signal == 2
    assert forecast.carries_signal


def test_the_numbers_are_those_of_the_semicircle() -> None:
    mechanism = calibrate_gram(1797, 64, 8.0, DELTA)
    forecast = forecast_gram(mechanism)
    assert forecast.sigma == mechanism.sigma
    assert forecast.noise_edge == pytest.approx(2 * mechanism.sigma * math.sqrt(1797))
    assert forecast.recoverable_share == pytest.approx(forecast.noise_edge / 2 / 1797)


def test_the_forecast_exists_for_extreme_settings() -> None:
    for epsilon, adjacency in (
        (1e-6, None),
        (1e6, None),
        (1e-3, Adjacency("output", 1e9)),
        (1.0, Adjacency("output", 1e-9)),
    ):
        forecast = forecast_gram(calibrate_gram(50, 4, epsilon, DELTA, adjacency))
        assert math.isfinite(forecast.epsilon_for_signal)
        assert 0 < forecast.shift_radius_for_signal <= 2


def unit_queries(m: int, d: int = 16) -> NDArray[np.float32]:
    return to_fixed(np.random.default_rng(1).normal(size=(m, d)))


ADJACENCIES = [
    (None, FULL_RANGE),
    (None, ScoreRange(0, 1)),
    (Adjacency("shift", 0.1), FULL_RANGE),
    (Adjacency("output", 0.5), FULL_RANGE),
]


@pytest.mark.parametrize(("adjacency", "score_range"), ADJACENCIES)
@pytest.mark.parametrize("m", [1, 2, 40])
def test_separate_releases_at_the_forecast_noise_compose_to_the_joint_epsilon(
    m: int, adjacency: Adjacency | None, score_range: ScoreRange
) -> None:
    joint = calibrate_scores(500, unit_queries(m), 2.0, DELTA, adjacency, score_range)
    forecast = forecast_scores(joint)
    one = np.eye(1, 16, dtype=np.float32)
    alone = calibrate_scores(500, one, 2.0, DELTA, adjacency, score_range).guarantee.sensitivity
    multiplier = forecast.separate_sigma / alone.value
    assert compose([multiplier] * m, DELTA) == pytest.approx(2.0, rel=1e-5)
    assert forecast.sigma <= forecast.separate_sigma * (1 + 1e-9)
    assert m > 1 or forecast.sigma == pytest.approx(forecast.separate_sigma, rel=1e-5)


def test_a_joint_release_of_different_queries_is_cheaper_and_of_like_ones_is_not() -> None:
    different = forecast_scores(calibrate_scores(500, np.eye(8, dtype=np.float32), 2.0, DELTA))
    assert different.separate_sigma / different.sigma == pytest.approx(math.sqrt(8), rel=1e-5)
    like = np.repeat(unit_queries(1), 8, axis=0)
    same = forecast_scores(calibrate_scores(500, like, 2.0, DELTA))
    assert same.separate_sigma / same.sigma == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(("adjacency", "score_range"), ADJACENCIES)
def test_the_named_epsilon_brings_the_noise_of_scores_to_half_the_range(
    adjacency: Adjacency | None, score_range: ScoreRange
) -> None:
    queries = unit_queries(5)
    forecast = forecast_scores(calibrate_scores(500, queries, 1.0, DELTA, adjacency, score_range))
    there = calibrate_scores(
        500, queries, forecast.epsilon_for_signal, DELTA, adjacency, score_range
    )
    assert there.sigma == pytest.approx(forecast.half_range, rel=1e-4)
    assert forecast.carries_signal == (forecast.epsilon_for_signal < 1)


@pytest.mark.parametrize("sigma", [0.02, 0.4, 3.0])
@pytest.mark.parametrize("score_range", [FULL_RANGE, ScoreRange(0, 1), ScoreRange(0.2, 0.3)])
def test_clipped_errors_are_those_of_simulated_scores(
    sigma: float, score_range: ScoreRange
) -> None:
    noise = sigma * np.random.default_rng(2).standard_normal(400_000)
    low, high = score_range.low, score_range.high
    for clean, forecast in zip(
        ((low + high) / 2, high), clipped_errors(sigma, score_range), strict=True
    ):
        squared = (np.clip(clean + noise, low, high) - clean) ** 2
        deviation = squared.std() / math.sqrt(squared.size)
        assert abs(forecast**2 - squared.mean()) < 4 * deviation
