"""The attacks succeed on clean values, and on released ones as far as the claim allows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest, mannwhitneyu, norm

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.audit.attacks import (
    Strategy,
    _area_under_curve,
    gaussian_direction,
    hill_climbing,
    membership_inference,
    reconstruction,
    regression,
)
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange
from tests.harness.gaussian import counted_key

DELTA, SEED = 1e-6, b"test"
DIGITS = Path(__file__).resolve().parents[3] / "configs" / "data" / "digits.npy"


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float32]:
    return to_fixed(np.load(DIGITS)[::30])


def claim(
    rows: NDArray[np.float32],
    epsilon: float,
    adjacency: Adjacency | None = None,
    score_range: ScoreRange = FULL_RANGE,
) -> Mechanism:
    return calibrate_gram(*rows.shape, epsilon, DELTA, adjacency, score_range)


# Membership inference.


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 100.0])
@pytest.mark.parametrize("score_range", [FULL_RANGE, ScoreRange(0, 1)])
def test_membership_is_certain_on_clean_digits_and_bounded_on_released_ones(
    digits: NDArray[np.float32], epsilon: float, score_range: ScoreRange
) -> None:
    mechanism = claim(digits, epsilon, None, score_range)
    result = membership_inference(digits, mechanism, 500, SEED, counted_key)
    assert result.clean_success == 1
    # Four standard deviations of 1000 guesses.
    assert 0.5 - 4 / math.sqrt(4000) < result.released_success
    assert result.released_success < result.success_bound + 4 / math.sqrt(4000)
    assert abs(result.released_auc - result.released_success) < 0.1


def test_membership_reaches_its_bound_on_the_worst_gallery() -> None:
    """Half the records u, half −u: x and a decoy of the other half are the worst pair."""
    rows = to_fixed(np.repeat([[1.0, 0.0], [-1.0, 0.0]], 20, axis=0))
    result = membership_inference(rows, claim(rows, 8.0), 1500, SEED, counted_key)
    # 20 of the 39 pairs of records differ; equal records cannot be told apart at all.
    expected = 0.5 + 20 / 39 * (result.success_bound - 0.5)
    assert result.released_success == pytest.approx(expected, abs=4 / math.sqrt(12000))
    assert result.clean_success == pytest.approx(0.5 + 10 / 39, abs=0.05)


def test_the_bound_under_shift_is_that_of_replacing_a_record(digits: NDArray[np.float32]) -> None:
    mechanism = claim(digits, 8.0, Adjacency("shift", 0.1))
    result = membership_inference(digits, mechanism, 50, SEED, counted_key)
    assert result.success_bound == pytest.approx(norm.cdf(mechanism.implied.mu / 2), abs=1e-6)
    assert result.success_bound > norm.cdf(mechanism.guarantee.mu / 2)


def test_membership_succeeds_where_the_claim_allows_it(digits: NDArray[np.float32]) -> None:
    result = membership_inference(digits, claim(digits, 1e5), 100, SEED, counted_key)
    assert result.released_success == 1
    assert result.released_auc == 1


def test_the_area_under_the_curve_agrees_with_mann_and_whitney() -> None:
    random = np.random.default_rng(0)
    positive, negative = random.integers(0, 9, 50) + 1.0, random.integers(0, 9, 50) * 1.0
    expected = mannwhitneyu(positive, negative).statistic / 2500
    assert _area_under_curve(positive, negative) == pytest.approx(expected)


# Reconstruction.


@pytest.mark.parametrize(("strategy", "closest"), [(hill_climbing, 0.995), (regression, 0.99999)])
def test_a_record_is_reconstructed_from_clean_scores_only(
    digits: NDArray[np.float32], strategy: Strategy, closest: float
) -> None:
    mechanism = claim(digits, 8.0, None, ScoreRange(0, 1))
    result = reconstruction(digits, mechanism, strategy, 3, 1000, SEED, counted_key)
    assert result.clean_cosine > closest
    assert result.clean_identified == 1
    # Worse than not asking at all.
    assert result.released_cosine < result.start_cosine
    assert result.released_identified <= 1 / 3


def test_regression_succeeds_where_the_claim_allows_it(digits: NDArray[np.float32]) -> None:
    """Error of the estimate: about 2 d σ/Δ, whatever the number of queries."""
    result = reconstruction(digits, claim(digits, 1e6), regression, 3, 1000, SEED, counted_key)
    assert result.released_cosine > 0.97
    assert result.released_identified == 1


def test_an_attack_can_be_repeated(digits: NDArray[np.float32]) -> None:
    mechanism = claim(digits, 100.0)
    one, other, different = (
        reconstruction(digits, mechanism, hill_climbing, 2, 60, seed, counted_key)
        for seed in (SEED, SEED, b"other")
    )
    assert one == other
    assert one.clean_cosine != different.clean_cosine


def test_all_queries_together_cost_the_claim(digits: NDArray[np.float32]) -> None:
    """The noise that an attack sees grows with √queries."""

    def spread(queries: int) -> float:
        seen: list[float] = []

        def listen(score, start, count, seed):  # type: ignore[no-untyped-def]
            seen.extend(score(start[None], number) for number in range(count))
            return start.astype(np.float64)

        reconstruction(digits, claim(digits, 8.0), listen, 1, queries, SEED, counted_key)
        return float(np.std(seen[queries:]))

    multiplier = claim(digits, 8.0).sigma / claim(digits, 8.0).guarantee.sensitivity.value
    assert spread(400) == pytest.approx(2 * math.sqrt(400) * multiplier, rel=0.15)
    assert spread(1600) == pytest.approx(2 * math.sqrt(1600) * multiplier, rel=0.08)


def test_directions_are_standard_normal_and_differ() -> None:
    sample = np.concatenate([gaussian_direction(SEED, number, 500) for number in range(20)])
    assert kstest(sample, norm.cdf).pvalue > 1e-3
    assert np.unique(sample).size == sample.size


def test_attacks_without_a_gallery_are_refused(digits: NDArray[np.float32]) -> None:
    mechanism = claim(digits, 1.0)
    with pytest.raises(ParameterError, match="at least 3 records and 1 trial, found 2 and 5"):
        membership_inference(digits[:2], mechanism, 5, SEED)
    with pytest.raises(ParameterError, match="found 4 and 10"):
        reconstruction(digits[:3], mechanism, regression, 4, 10, SEED)
    with pytest.raises(ParameterError, match="found 1 and 0"):
        reconstruction(digits[:3], mechanism, regression, 1, 0, SEED)
