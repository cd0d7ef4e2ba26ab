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
from numpy.typing import NDArray

from scoreshield.audit.audit import (
    Release,
    _fingerprints,
    audit,
    conclude,
    fresh_key,
    plan_audit,
    release_gram_once,
    tally_releases,
)
from scoreshield.audit.result import AuditResult
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism
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
