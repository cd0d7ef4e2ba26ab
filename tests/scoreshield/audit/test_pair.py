"""Two galleries that are adjacent, and as far apart as the adjacency allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scoreshield.arithmetic.fixedpoint import check_fixed
from scoreshield.audit.audit import AUDIT_RECORDS, plan_audit
from scoreshield.audit.pair import worst_pair
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange

DELTA = 1e-6

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
