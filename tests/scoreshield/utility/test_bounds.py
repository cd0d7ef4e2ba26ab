"""Errors and bounds against quadrature in multiple precision and against real releases."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import ParameterError
from scoreshield.inmemory import perturb_gram
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.calibration import noise_multiplier
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange
from scoreshield.projection import project
from scoreshield.utility.bounds import (
    clipped_scores_error,
    low_rank_gram_bound,
    naive_gram_error,
    naive_scores_error,
    projected_gram_bound,
    projected_gram_bound_output,
    projected_gram_bound_record,
)
from tests.harness.gaussian import standard_normal

DELTA = 1e-6
UNIT = ScoreRange(0.0, 1.0)


# Scores.


@pytest.mark.parametrize("sigma", [1e-4, 0.03, 0.4, 1.0, 7.0, 1e4])
@pytest.mark.parametrize("score", [-1.0, -0.999, 0.0, 0.37, 1.0])
@pytest.mark.parametrize("score_range", [FULL_RANGE, UNIT])
def test_the_clipped_error_is_its_integral(
    score: float, sigma: float, score_range: ScoreRange
) -> None:
    s = min(max(score, score_range.low), score_range.high)
    with mpmath.workdps(30):
        low, high = (score_range.low - mpmath.mpf(s)), (score_range.high - mpmath.mpf(s))
        start, stop = max(low / sigma, -12), min(high / sigma, 12)
        inside = mpmath.quad(
            lambda z: (sigma * z) ** 2 * mpmath.npdf(z), mpmath.linspace(start, stop, 9)
        )
        exact = inside + low**2 * mpmath.ncdf(low / sigma) + high**2 * mpmath.ncdf(-high / sigma)
    found = float(clipped_scores_error(score, sigma, score_range))
    assert found == pytest.approx(float(exact), rel=1e-10, abs=0)


@given(st.floats(-1, 1), st.floats(0, 1e8))
@example(0.0, 0.12)
@example(1.0, 0.12)
def test_clipping_never_adds_error(score: float, sigma: float) -> None:
    for score_range in (FULL_RANGE, UNIT):
        error = float(clipped_scores_error(score, sigma, score_range))
        assert 0 <= error <= naive_scores_error(1, sigma)
        # A clipped score is at most the range's width away.
        assert error <= (score_range.high - score_range.low) ** 2


def test_score_errors_of_real_noise() -> None:
    z = standard_normal(1, "bounds")
    for sigma in (0.05, 0.5, 3.0):
        for score in (-0.2, 0.9, 1.0):
            squares = (np.clip(score + sigma * z, -1, 1) - score) ** 2
            error = squares.std() / math.sqrt(z.size)
            assert abs(squares.mean() - clipped_scores_error(score, sigma)) < 4.5 * error
        naive = (sigma * z) ** 2
        error = naive.std() / math.sqrt(z.size)
        assert abs(naive.mean() - naive_scores_error(7, sigma) / 7) < 4.5 * error


# Gram matrices.


def low_rank_gallery(n: int, rank: int) -> NDArray[np.float32]:
    generator = np.random.default_rng(rank)
    return to_fixed(generator.standard_normal((n, rank)))


def squared_errors(
    rows: NDArray[np.float32], mechanism: Mechanism, draws: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared error of noisy and exactly projected Gram matrices of real releases."""
    clean = rows.astype(np.float64) @ rows.astype(np.float64).T
    np.fill_diagonal(clean, 1.0)
    noisy_errors, projected_errors = [], []
    for draw in range(draws):
        noisy = perturb_gram(rows, mechanism, bytes(32), f"draw {draw}").astype(np.float64)
        found = project(noisy, method="nearest", tolerance=1e-8).gram()
        noisy_errors.append(np.sum((noisy - clean) ** 2))
        projected_errors.append(np.sum((found - clean) ** 2))
    return np.array(noisy_errors), np.array(projected_errors)


@pytest.mark.parametrize(
    ("epsilon", "adjacency"),
    [
        (1.0, Adjacency("record")),
        (50.0, Adjacency("record")),
        (8.0, Adjacency("output", 3.0)),
        (8.0, Adjacency("output", 0.3)),
        (8.0, Adjacency("output", 0.03)),
    ],
)
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_gram_bounds_hold_for_real_releases(
    epsilon: float, adjacency: Adjacency, rank: int
) -> None:
    n, draws = 40, 12
    mechanism = calibrate_gram(n, rank, epsilon, DELTA, adjacency)
    noisy, projected = squared_errors(low_rank_gallery(n, rank), mechanism, draws)
    sigma = mechanism.sigma
    standard_error = noisy.std() / math.sqrt(draws)
    assert abs(noisy.mean() - naive_gram_error(n, sigma)) < 4.5 * standard_error
    highest = projected.mean() - 3 * projected.std() / math.sqrt(draws)
    assert highest <= projected_gram_bound(n, sigma)
    assert highest <= low_rank_gram_bound(n, rank, sigma)
    assert projected.mean() <= noisy.mean()
    multiplier = noise_multiplier(epsilon, DELTA)
    named = (
        projected_gram_bound_record(n, multiplier)
        if adjacency.radius is None
        else projected_gram_bound_output(n, multiplier, adjacency.radius)
    )
    assert named == pytest.approx(projected_gram_bound(n, sigma), rel=1e-4)


def test_the_bounds_say_something() -> None:
    """Within a small factor of what a release measures, where each is meant to be used."""
    n = 100
    for radius, rank, bound in ((2.0, 100, 4.0), (0.02, 2, 4.0)):
        mechanism = calibrate_gram(n, rank, 8.0, DELTA, Adjacency("output", radius))
        _, projected = squared_errors(low_rank_gallery(n, rank), mechanism, 4)
        limit = low_rank_gram_bound(n, rank, mechanism.sigma)
        assert limit < naive_gram_error(n, mechanism.sigma)
        assert projected.mean() <= limit < bound * projected.mean()


def test_growth_in_n_is_the_papers() -> None:
    """Θ(n³) to O(n²) under `record`, Θ(n²) to O(n^{3/2}) under `output`."""
    multiplier, sizes = noise_multiplier(1.0, DELTA), (10**4, 10**6)

    def exponent(error: list[float]) -> float:
        return math.log(error[1] / error[0]) / math.log(sizes[1] / sizes[0])

    record = [2 * multiplier * math.sqrt(n - 1) for n in sizes]
    assert exponent(
        [naive_gram_error(n, s) for n, s in zip(sizes, record, strict=True)]
    ) == pytest.approx(3, abs=1e-3)
    assert exponent([projected_gram_bound_record(n, multiplier) for n in sizes]) == pytest.approx(
        2, abs=1e-3
    )
    assert exponent([naive_gram_error(n, 1.0) for n in sizes]) == pytest.approx(2, abs=1e-3)
    assert exponent(
        [projected_gram_bound_output(n, multiplier, 1.0) for n in sizes]
    ) == pytest.approx(1.5, abs=1e-3)


@given(st.integers(1, 10**6), st.floats(0, 1e3), st.data())
def test_bounds_are_nested(n: int, sigma: float, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, n))
    local = low_rank_gram_bound(n, rank, sigma)
    assert 0 <= local <= projected_gram_bound(n, sigma) <= naive_gram_error(n, sigma)
    assert low_rank_gram_bound(n, rank, 0.0) == 0


def test_impossible_arguments_are_refused() -> None:
    for sigma in (-1.0, math.nan, math.inf):
        for refuses in (
            lambda sigma=sigma: clipped_scores_error(0.1, sigma),
            lambda sigma=sigma: projected_gram_bound(10, sigma),
            lambda sigma=sigma: naive_scores_error(10, sigma),
        ):
            with pytest.raises(ParameterError, match="sigma must be finite"):
                refuses()
    for rank in (0, 11):
        with pytest.raises(ParameterError, match=r"rank must lie in \[1, 10\]"):
            low_rank_gram_bound(10, rank, 1.0)
    with pytest.raises(ParameterError, match="n must be at least 1"):
        naive_gram_error(0, 1.0)
    with pytest.raises(ParameterError, match="NaN"):
        clipped_scores_error(math.nan, 1.0)
