"""Scores of a prepared gallery: the mechanism's bits, and what is refused before any noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected, ParameterError
from scoreshield.inmemory import release_scores
from scoreshield.mechanisms.gaussian import noisy_block
from scoreshield.mechanisms.scores import calibrate_scores, fixed_queries, scores_mechanism
from scoreshield.prepared import _PANEL, PreparedGallery
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange

KEY = bytes(range(1, 33))
DELTA = 1e-6
RECORD = Adjacency("record")


def unit_rows(n: int, d: int, seed: int) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1)[:, None]


GALLERY = unit_rows(2500, 12, 0)
QUERIES = unit_rows(5, 12, 1)


@pytest.mark.parametrize(
    ("n", "m"),
    [
        *itertools.product([1, 1000, 1024, 1025, 2500], [1, 5, 1030]),
        # Across the seam of two panels.
        (_PANEL + 1500, 1),
        (_PANEL + 1500, 2),
    ],
)
def test_scores_are_the_bits_of_the_mechanism(n: int, m: int) -> None:
    gallery, queries = unit_rows(n, 12, 0), to_fixed(unit_rows(m, 12, 1))
    for score_range in (FULL_RANGE, ScoreRange(0.0, 0.5)):
        mechanism = scores_mechanism(n, queries, 8.0, DELTA, RECORD, score_range)
        expected = noisy_block(mechanism, queries, to_fixed(gallery), 0, 0, KEY, "r")
        found = PreparedGallery(gallery).noisy_scores(mechanism, queries, KEY, "r")
        assert found.dtype == np.float32
        assert found.tobytes() == expected.tobytes()


def test_released_scores_are_clipped_noisy_cosines() -> None:
    prepared = PreparedGallery(GALLERY * 3.0)
    assert (prepared.n, prepared.d, repr(prepared)) == (2500, 12, "PreparedGallery(n=2500, d=12)")
    # A generous ε: the noise is smaller than most distances to the ends of the range.
    single = release_scores(prepared, QUERIES[0], epsilon=2000.0, delta=DELTA)
    joint = release_scores(GALLERY, QUERIES, epsilon=2000.0, delta=DELTA)
    assert single.scores.shape == (2500,)
    assert joint.scores.shape == (5, 2500)
    for release, clean in ((single, QUERIES[0] @ GALLERY.T), (joint, QUERIES @ GALLERY.T)):
        sigma = release.manifest.mechanism.sigma
        inside = np.abs(clean) + 6 * sigma < 1
        error = (release.scores - clean)[inside]
        assert inside.mean() > 0.3
        assert abs(error.std() / sigma - 1) < 5 / math.sqrt(2 * error.size)
        assert np.abs(release.scores).max() <= 1
    again = release_scores(prepared, QUERIES[0], epsilon=2000.0, delta=DELTA)
    assert np.mean(again.scores == single.scores) < 0.1


def test_a_promised_range_holds_for_released_scores() -> None:
    released = release_scores(
        PreparedGallery(np.abs(GALLERY)),
        np.abs(QUERIES[0]),
        epsilon=8.0,
        delta=DELTA,
        score_range=(0.0, 1.0),
    )
    assert released.scores.min() == 0
    assert released.scores.max() == 1
    full = release_scores(GALLERY, QUERIES[0], epsilon=8.0, delta=DELTA)
    assert released.manifest.mechanism.sigma == pytest.approx(full.manifest.mechanism.sigma / 2)


def test_one_calibration_serves_every_single_query() -> None:
    """σ of any single query suffices, and exceeds its own by less than 1e-6."""
    common = scores_mechanism(2500, to_fixed(QUERIES[:1]), 8.0, DELTA, RECORD, FULL_RANGE)
    for query in to_fixed(QUERIES):
        one = query[None]
        assert scores_mechanism(2500, one, 8.0, DELTA, RECORD, FULL_RANGE) is common
        own = calibrate_scores(2500, one, 8.0, DELTA)
        assert own.sigma <= common.sigma <= own.sigma * (1 + 1e-6)
        assert common.guarantee.sensitivity.value >= own.guarantee.sensitivity.value
    for n, epsilon, delta, adjacency, score_range in (
        (2501, 8.0, DELTA, RECORD, FULL_RANGE),
        (2500, 4.0, DELTA, RECORD, FULL_RANGE),
        (2500, 8.0, 1e-7, RECORD, FULL_RANGE),
        (2500, 8.0, DELTA, Adjacency("shift", 0.1), FULL_RANGE),
        (2500, 8.0, DELTA, RECORD, ScoreRange(0, 1)),
    ):
        query = to_fixed(QUERIES[:1])
        assert scores_mechanism(n, query, epsilon, delta, adjacency, score_range) != common
    joint = scores_mechanism(2500, to_fixed(QUERIES), 8.0, DELTA, RECORD, FULL_RANGE)
    assert joint == calibrate_scores(2500, to_fixed(QUERIES), 8.0, DELTA)


@pytest.mark.parametrize(
    ("queries", "complaint"),
    [
        (QUERIES[:, :11], "queries have 11 features and records 12"),
        (QUERIES[0, :11], "queries have 11 features and records 12"),
        (QUERIES * [[1], [1], [2], [1], [1]], r"1 of 5 queries are not of unit length.*2 \(norm 2"),
        (QUERIES[0] * 0.5, r"1 of 1 queries are not of unit length.*0 \(norm 0.5\)"),
        (QUERIES * [[1], [0], [1], [1], [1]], "1 of 5 rows are zero.*: 1"),
        (QUERIES[:0], "Q holds no query"),
        (np.array([]), "queries have 0 features and records 12"),
        (QUERIES[[0, 1, 0, 2, 1]], r"2 of 5 queries repeat .*2 \(same as 0\), 4 \(same as 1\)"),
        (np.where(QUERIES[3, 4] == QUERIES, np.nan, QUERIES), "NaN or infinite.*: 3"),
        (QUERIES[None], r"Q has shape \(1, 5, 12\)"),
        (QUERIES.astype(object), "type object"),
        (QUERIES.astype(complex), "type complex128"),
    ],
)
def test_bad_queries_are_refused_in_one_line(queries: NDArray[np.float64], complaint: str) -> None:
    for gallery in (PreparedGallery(GALLERY), GALLERY):
        with pytest.raises(InputRejected, match=complaint) as refusal:
            release_scores(gallery, queries, epsilon=1.0, delta=DELTA)
        assert "\n" not in str(refusal.value)


def test_a_repeated_query_is_told_what_it_would_cost() -> None:
    with pytest.raises(InputRejected, match="asked twice costs twice, together or apart"):
        fixed_queries(QUERIES[[0, 0]], 12)
    # What the message says: jointly, a pair of equal queries needs the noise of two releases.
    twice = calibrate_scores(10, to_fixed(QUERIES[[0, 0]]), 1.0, DELTA)
    once = calibrate_scores(10, to_fixed(QUERIES[:1]), 1.0, DELTA)
    assert twice.sigma == pytest.approx(once.sigma * math.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_queries_of_every_float_type_count_as_unit(dtype: str) -> None:
    assert fixed_queries(QUERIES.astype(dtype), 12).shape == (5, 12)
    assert fixed_queries(QUERIES[0].astype(dtype), 12).shape == (1, 12)


def test_bad_galleries_and_parameters_are_refused() -> None:
    for gallery, complaint in (
        (GALLERY[0], r"E has shape \(12,\)"),
        (np.zeros((3, 4)), "3 of 3 rows are zero"),
        (GALLERY.astype(object), "type object"),
    ):
        with pytest.raises(InputRejected, match=complaint):
            PreparedGallery(gallery)
    with pytest.raises(ParameterError, match="epsilon must lie in"):
        release_scores(GALLERY, QUERIES[0], epsilon=0.0, delta=DELTA)
    with pytest.raises(ParameterError, match="1 queries and 0 records"):
        release_scores(GALLERY[:0], QUERIES[0], epsilon=1.0, delta=DELTA)
