"""The data-free forecast against the mechanism it speaks about."""

from __future__ import annotations

import math

import pytest

from scoreshield.forecast import forecast_gram
from scoreshield.mechanism import calibrate_gram
from scoreshield.sensitivity import FULL_RANGE, Adjacency, ScoreRange

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
