"""The audit accepts the mechanism, closely, and catches each way in which it is usually broken.

Release keys come from a counter, so each run counts the same releases.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from scoreshield.arithmetic.fixedpoint import check_fixed
from scoreshield.audit.audit import (
    AUDIT_RECORDS,
    Release,
    _fingerprints,
    audit,
    conclude,
    fresh_key,
    plan_audit,
    release_gram_once,
    tally_releases,
)
from scoreshield.audit.bound import MOST_RELEASES, detectable_sigma, mu_lower_bound, releases_needed
from scoreshield.audit.pair import worst_pair
from scoreshield.audit.result import AuditResult
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism, calibrate_gram
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange
from tests.harness.gaussian import counted_key

DELTA = 1e-6
Rows = NDArray[np.float32]


# The mechanism as it is.


@pytest.mark.parametrize(
    ("epsilon", "adjacency", "score_range"),
    [
        (8.0, Adjacency("record"), FULL_RANGE),
        (20.0, Adjacency("record"), ScoreRange(0, 1)),
        (20.0, Adjacency("shift", 0.1), ScoreRange(0, 1)),
        (20.0, Adjacency("output", 1.0), FULL_RANGE),
        # Wrong guesses on the worst pair would never be seen: a closer pair takes its place.
        (1e4, Adjacency("record"), ScoreRange(0.5, 0.9)),
        # No record alone can move the similarities by 12, so the pair is closer than the claim.
        (20.0, Adjacency("output", 12.0), FULL_RANGE),
    ],
)
def test_the_bound_is_close_to_the_claim_from_below(
    epsilon: float, adjacency: Adjacency, score_range: ScoreRange
) -> None:
    plan = plan_audit(epsilon, DELTA, adjacency, score_range)
    result = audit(plan, counted_key)
    assert result.consistent
    assert 0.85 < result.tightness <= 1
    assert 0.8 * epsilon < result.epsilon_lower_bound <= epsilon
    assert plan.pair.fraction <= 1


@pytest.mark.slow
def test_the_bound_is_close_at_epsilon_one_too() -> None:
    result = audit(plan_audit(1.0, DELTA), counted_key)
    assert result.consistent
    assert 0.85 < result.tightness <= 1
    assert result.detectable_sigma > 0.89


def test_fresh_keys_differ() -> None:
    assert len({fresh_key(0) for _ in range(100)}) == 100
    assert len(fresh_key(0)) == 32


def test_parts_of_an_audit_add_up_to_the_whole() -> None:
    plan = plan_audit(20.0, DELTA, releases=700)
    whole = tally_releases(plan, 0, 700, counted_key)
    parts = tally_releases(plan, 0, 300, counted_key) + tally_releases(plan, 300, 700, counted_key)
    assert conclude(plan, whole) == conclude(plan, parts)
    assert sorted(whole.noise) == sorted(parts.noise)


def test_an_audit_cannot_stop_early() -> None:
    plan = plan_audit(20.0, DELTA, releases=20)
    with pytest.raises(ParameterError, match="planned 20 releases a side, found 19"):
        conclude(plan, tally_releases(plan, 0, 19, counted_key))


# Mechanisms that are broken: each must contradict its claim.


def too_little_noise(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
    return release_gram_once(dataclasses.replace(mechanism, sigma=0.9 * mechanism.sigma), rows, key)


def sensitivity_without_factor_two(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
    return release_gram_once(dataclasses.replace(mechanism, sigma=mechanism.sigma / 2), rows, key)


def fresh_noise_on_retry(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
    again = release_gram_once(mechanism, rows, hashlib.sha256(key).digest())
    return (release_gram_once(mechanism, rows, key) + again) / 2


def noise_below_the_diagonal_too(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
    other = release_gram_once(mechanism, rows, hashlib.sha256(key).digest())
    return np.triu(release_gram_once(mechanism, rows, key)) + np.tril(other, -1)


def range_not_enforced(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
    return release_gram_once(dataclasses.replace(mechanism, score_range=FULL_RANGE), rows, key)


@pytest.mark.parametrize(
    ("release", "epsilon", "releases", "true_ratio"),
    [
        (too_little_noise, 8.0, None, 1 / 0.9),
        (too_little_noise, 1e4, None, 1 / 0.9),
        (sensitivity_without_factor_two, 8.0, 800, 2.0),
        (fresh_noise_on_retry, 8.0, 800, math.sqrt(2)),
        (noise_below_the_diagonal_too, 8.0, 800, math.sqrt(2)),
        (range_not_enforced, 8.0, 800, 2.0),
    ],
)
def test_too_little_noise_for_the_claim_is_caught(
    release: Release, epsilon: float, releases: int | None, true_ratio: float
) -> None:
    score_range = ScoreRange(0, 1) if release is range_not_enforced else FULL_RANGE
    plan = plan_audit(epsilon, DELTA, None, score_range, releases=releases)
    result = audit(plan, counted_key, release)
    assert not result.consistent
    assert result.claimed_mu < result.mu_lower_bound <= true_ratio * result.claimed_mu * 1.001
    assert "noise is too small" in result.faults[0]
    assert "CONTRADICTS" in result.to_text()


def test_one_key_on_two_galleries_is_caught() -> None:
    plan = plan_audit(20.0, DELTA, releases=50)
    result = audit(plan, lambda index: counted_key(index // 2))
    assert result.repeated_noise == 50
    assert any("another one had used" in fault for fault in result.faults)
    one, other = (
        release_gram_once(plan.mechanism, rows, counted_key(0)).astype(np.float64)
        for rows in (plan.pair.before, plan.pair.after)
    )
    difference = plan.pair.gram_after - plan.pair.gram_before
    assert np.abs(other - one - difference).max() <= plan.mechanism.grid


def test_one_key_for_all_releases_is_caught() -> None:
    result = audit(plan_audit(20.0, DELTA, releases=50), lambda _index: counted_key(0))
    assert result.repeated_noise == 99


def test_similar_noise_is_not_the_same_noise() -> None:
    """Small integers in every order: what a weak hash would confuse."""
    vectors = np.unique(np.random.default_rng(0).integers(-3, 4, (20_000, 15)), axis=0)
    fingerprints = _fingerprints(vectors * 2.0**-10, 2.0**-10)
    assert np.unique(fingerprints).size == len(vectors)


def test_noise_off_the_grid_is_caught() -> None:
    def off_the_grid(mechanism: Mechanism, rows: Rows, key: bytes) -> Rows:
        out = release_gram_once(mechanism, rows, key)
        out[0, 5] += np.float32(mechanism.grid / 4)
        return out

    plan = plan_audit(20.0, DELTA, releases=50)
    assert audit(plan, counted_key).off_grid == 0
    result = audit(plan, counted_key, off_the_grid)
    # Where a value exceeds 2^22 steps of the grid, float32 rounds the quarter step away.
    assert result.off_grid > 80
    assert any("multiple of the grid" in fault for fault in result.faults)


# The pair.

adjacencies = st.one_of(
    st.just(Adjacency("record")),
    st.floats(1e-3, 2).map(lambda radius: Adjacency("shift", radius)),
    st.floats(1e-3, 50).map(lambda radius: Adjacency("output", radius)),
)


@given(
    adjacencies,
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.floats(0.01, 1),
    st.floats(0.1, 100),
)
@settings(max_examples=150, deadline=None)
def test_the_galleries_of_a_pair_are_adjacent(
    adjacency: Adjacency, one_end: float, other_end: float, share: float, epsilon: float
) -> None:
    low, high = sorted((one_end, other_end))
    assume(high - low > 1e-3)
    mechanism = calibrate_gram(AUDIT_RECORDS, 2, epsilon, DELTA, adjacency, ScoreRange(low, high))
    pair = worst_pair(mechanism, share)
    check_fixed(pair.before)
    check_fixed(pair.after)
    assert np.array_equal(pair.before[1:], pair.after[1:])
    change = pair.gram_after - pair.gram_before
    assert 0 < pair.distance <= pair.worst_distance * (1 + 1e-12)
    assert pair.distance <= mechanism.guarantee.sensitivity.value
    if adjacency.kind == "shift":
        moved = np.linalg.norm((pair.after - pair.before).astype(np.float64))
        assert moved <= adjacency.reach
    if adjacency.kind == "output":
        assert np.linalg.norm(change) <= adjacency.reach * (1 + 1e-12)
    assert np.abs(change).max() <= high - low
    for gram in (pair.gram_before, pair.gram_after):
        off_diagonal = gram[~np.eye(AUDIT_RECORDS, dtype=bool)]
        assert off_diagonal.min() >= low
        assert off_diagonal.max() <= high


@pytest.mark.parametrize(
    ("adjacency", "score_range"),
    [
        (Adjacency("record"), FULL_RANGE),
        (Adjacency("record"), ScoreRange(0, 1)),
        (Adjacency("record"), ScoreRange(-0.3, 0.7)),
        (Adjacency("shift", 0.5), FULL_RANGE),
        (Adjacency("shift", 0.5), ScoreRange(0, 1)),
        (Adjacency("output", 3.0), FULL_RANGE),
    ],
)
def test_the_whole_pair_reaches_the_sensitivity(
    adjacency: Adjacency, score_range: ScoreRange
) -> None:
    mechanism = calibrate_gram(AUDIT_RECORDS, 2, 1.0, DELTA, adjacency, score_range)
    pair = worst_pair(mechanism, 1.0)
    assert pair.distance == pytest.approx(mechanism.guarantee.sensitivity.value, rel=1e-4)


def test_the_worst_record_pair_is_a_record_and_its_opposite() -> None:
    pair = plan_audit(1.0, DELTA).pair
    assert np.array_equal(pair.before[0], -pair.after[0])
    assert pair.distance == 2 * math.sqrt(AUDIT_RECORDS - 1)


# The bound.


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


# What is refused, and what is shown.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"confidence": 1.0}, "confidence must lie in"),
        ({"confidence": math.nan}, "confidence must lie in"),
        ({"releases": 0}, "at least 1 release"),
        ({"adjacency": Adjacency("shift", 1e-8)}, "below the fixed-point step"),
        ({"score_range": ScoreRange(0.3, math.nextafter(0.3, 1))}, "below the fixed-point step"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        plan_audit(1.0, DELTA, **arguments)  # type: ignore[arg-type]


def test_claim_and_bound_stand_side_by_side() -> None:
    result = audit(plan_audit(8.0, DELTA, releases=300), counted_key)
    content = json.loads(json.dumps(result.to_json()))
    assert content["claimed_epsilon"] == 8
    assert content["mu_lower_bound"] < content["claimed_mu"]
    assert content["consistent"] is True
    assert content["faults"] == []
    assert {field.name for field in dataclasses.fields(AuditResult)} < content.keys()
    text = result.to_text()
    for expected in ("consistent", "epsilon 8 at delta 1e-06", "adjacency record", "at least"):
        assert expected in text
