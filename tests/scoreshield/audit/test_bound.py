"""What wrong guesses prove holds as often as it says, and enough of them are planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from scoreshield.audit.bound import (
    MOST_RELEASES,
    detectable_sigma,
    mu_lower_bound,
    releases_needed,
)


@pytest.mark.parametrize(
    ("wrong", "guesses", "confidence"),
    [(0, 10, 0.95), (3, 20, 0.99), (450, 1000, 0.999), (2000, 100_000, 0.9), (1, 2, 0.95)],
)
def test_the_bound_agrees_with_the_exact_binomial_interval(
    wrong: int, guesses: int, confidence: float
) -> None:
    interval = binomtest(wrong, guesses, alternative="less").proportion_ci(confidence, "exact")
    expected = max(0.0, -2 * norm.ppf(interval.high))
    assert mu_lower_bound(wrong, guesses, confidence) == pytest.approx(expected, rel=1e-9)


def test_guessing_no_better_than_chance_bounds_nothing() -> None:
    assert mu_lower_bound(10, 10, 0.95) == 0
    assert mu_lower_bound(500, 1000, 0.95) == 0


@given(st.floats(0.02, 3.0), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_bound_holds_as_often_as_it_says(mu: float, seed: int) -> None:
    """400 audits of an exact Gaussian mechanism at confidence 0.9; 68 failures are 4.7 sigma."""
    random = np.random.default_rng(seed)
    wrong = random.binomial(2000, norm.cdf(-mu / 2), size=400)
    failures = sum(mu_lower_bound(int(count), 2000, 0.9) > mu for count in wrong)
    assert failures <= 68


@pytest.mark.parametrize("mu", [0.237, 0.7, 1.5, 3.0])
def test_the_number_of_releases_exposes_a_tenth_of_sigma(mu: float) -> None:
    """Simulated: σ × 0.9 is exposed at least 97 times in 100, the claimed σ at most once."""
    releases = releases_needed(mu, 0.999)
    assert detectable_sigma(mu, releases, 0.999) >= 0.8985
    random = np.random.default_rng(0)
    for true_mu, fewest, most in ((mu / 0.9, 970, 1000), (mu, 0, 8)):
        wrong = random.binomial(2 * releases, norm.cdf(-true_mu / 2), size=1000)
        exposed = sum(mu_lower_bound(int(count), 2 * releases, 0.999) > mu for count in wrong)
        assert fewest <= exposed <= most


def test_small_claims_are_audited_as_far_as_time_allows() -> None:
    assert releases_needed(0.01, 0.999) == MOST_RELEASES
    assert detectable_sigma(0.01, MOST_RELEASES, 0.999) < 0.5
