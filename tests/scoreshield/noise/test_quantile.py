"""The normal quantile against mpmath, where noise relies on it."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from scoreshield.noise import sampler as noise
from scoreshield.noise.quantile import LARGEST_ERROR, lower_quantile

LOWEST = 2.866515718791939e-07
"""Φ(−5)."""


def quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    z = p.copy()
    lower_quantile(z, np.empty_like(p), np.empty_like(p))
    return z


def spread(count: int, seed: int) -> NDArray[np.float64]:
    """Probabilities in [Φ(−5), ½], evenly and by magnitude."""
    random = np.random.default_rng(seed)
    return np.concatenate(
        [
            random.uniform(LOWEST, 0.5, count),
            np.exp(random.uniform(np.log(LOWEST), np.log(0.5), count)),
        ]
    )


@pytest.mark.parametrize(("function", "granted"), [(quantile, 2.0**-47.5), (ndtri, 2.0**-48.7)])
def test_the_error_stays_within_what_noise_grants_it(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], granted: float
) -> None:
    """Also SciPy's, which the test below rests on."""
    points = np.concatenate(
        [
            spread(1500, seed=8),
            np.exp(-2) * (1 + np.linspace(-1e-6, 1e-6, 100)),
            0.5 - 2.0 ** -np.arange(2.0, 54),
            [0.5],
            np.linspace(LOWEST, 1.001 * LOWEST, 50),
        ]
    )
    worst = 0.0
    for p, z in zip(points, function(points), strict=True):
        with mpmath.workprec(120):
            error = (mpmath.ncdf(mpmath.mpf(float(z))) - mpmath.mpf(float(p))) / mpmath.npdf(z)
            worst = max(worst, abs(float(error)))
    assert worst < granted < LARGEST_ERROR
    assert 4 * (LARGEST_ERROR + 2.0**-45.6 + 2.0**-50) < noise._TOLERANCE


def test_a_million_values_agree_with_scipy() -> None:
    """SciPy's own error is 2^-48.7 at most, so this leaves little room between mpmath's points."""
    points = spread(500_000, seed=9)
    assert np.abs(quantile(points) - ndtri(points)).max() < LARGEST_ERROR + 2.0**-48.7


def test_the_far_tail_stays_far() -> None:
    """Noise decides samples below −5 in multiple precision; none of them may look nearer."""
    smallest_word = 2.0**-65
    points = np.exp(np.linspace(np.log(smallest_word), np.log(LOWEST), 200_000))
    z = quantile(points)
    assert z.max() < noise._FAR_TAIL + LARGEST_ERROR
    assert np.all(np.diff(z) > -LARGEST_ERROR)
    assert z[0] > -10


def test_any_shape_is_worked_on_in_place() -> None:
    points = spread(300, seed=10)
    expected = quantile(points)
    grid = points.reshape(20, 30).copy()
    lower_quantile(grid, np.empty((20, 30)), np.empty((20, 30)))
    assert np.array_equal(grid.ravel(), expected)
