"""Settings of regime ``scores``: public queries, checked, against n records."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import check_fixed, to_fixed
from scoreshield.errors import InputRejected, ParameterError
from scoreshield.mechanisms.gaussian import Mechanism, calibrated_mechanism, check_dimension
from scoreshield.privacy.sensitivity import (
    FULL_RANGE,
    Adjacency,
    ScoreRange,
    Sensitivity,
    scores_sensitivity,
)

UNIT_TOLERANCE = 0.01
"""How far the norm of a query may lie from one; float16 unit rows stay within 0.001."""

_SHOWN_ROWS = 5


def calibrate_scores(
    n: int,
    queries: NDArray[np.float32],
    epsilon: float,
    delta: float,
    adjacency: Adjacency | None = None,
    score_range: ScoreRange = FULL_RANGE,
) -> Mechanism:
    """Settings that release the scores of fixed-point queries (m, d) against n records, jointly.

    Raises
    ------
    ParameterError
        n or m < 1, d out of range, or privacy parameters that cannot be certified.
    InputRejected
        The queries are not fixed-point rows of norm at most one, on which Δ rests.
    """
    m, d = queries.shape
    if n < 1 or m < 1:
        raise ParameterError(
            f"scores need at least one query and one record, found {m} queries and {n} records"
        )
    check_dimension(d)
    check_fixed(queries)

    def sensitivity(adjacency: Adjacency, grid: float) -> Sensitivity:
        return scores_sensitivity(queries, adjacency, score_range, grid)

    return calibrated_mechanism(
        "scores", n, d, m, epsilon, delta, adjacency, score_range, sensitivity
    )


def fixed_queries(Q: NDArray[Any], d: int) -> NDArray[np.float32]:
    """Public queries (m, d), or one of shape (d,), in fixed point: distinct unit embeddings.

    Raises
    ------
    InputRejected
        Not one or more finite unit rows of d real numbers, or a query repeats an earlier one. A
        repeat would cost as much privacy as a new query and answer nothing new.
    """
    queries = np.atleast_2d(np.asarray(Q))
    if queries.ndim != 2 or queries.dtype.kind not in "fiu":
        raise InputRejected(
            f"Q has shape {np.shape(Q)} and type {queries.dtype}; "
            "expected real numbers, one query (d,) or one row a query (m, d)"
        )
    if queries.shape[0] == 0:
        raise InputRejected("Q holds no query; expected at least one row")
    if queries.shape[1] != d:
        raise InputRejected(
            f"queries have {queries.shape[1]} features and records {d}; "
            "expected the same embedding for both"
        )
    fixed = to_fixed(queries)
    _refuse_other_lengths(queries)
    if len(fixed) > 1:
        _refuse_repeats(fixed)
    return fixed


def scores_mechanism(
    n: int,
    queries: NDArray[np.float32],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    score_range: ScoreRange,
) -> Mechanism:
    """Settings of a release of fixed-point queries (m, d) against n records, jointly.

    For one query they depend on no query: its norm is at most 1, which is what they assume, so
    that a service calibrates once. The shrinking of fixed-point rows would allow a σ smaller by
    less than 1e-6 of itself.

    Raises
    ------
    ParameterError
        n < 1, or privacy parameters that cannot be certified.
    """
    m, d = queries.shape
    if m == 1:
        return _one_query_mechanism(n, d, epsilon, delta, adjacency, score_range)
    return calibrate_scores(n, queries, epsilon, delta, adjacency, score_range)


@lru_cache(maxsize=256)
def _one_query_mechanism(
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    score_range: ScoreRange,
) -> Mechanism:
    if d < 1:
        raise ParameterError("embeddings need at least one feature, found 0")
    longest = np.eye(1, d, dtype=np.float32)
    return calibrate_scores(n, longest, epsilon, delta, adjacency, score_range)


def _refuse_other_lengths(queries: NDArray[Any]) -> None:
    norms = np.linalg.norm(queries.astype(np.float64), axis=1)
    other = np.flatnonzero(~(np.abs(norms - 1) <= UNIT_TOLERANCE))
    if other.size:
        shown = ", ".join(f"{row} (norm {norms[row]:.6g})" for row in other[:_SHOWN_ROWS])
        raise InputRejected(
            f"{other.size} of {len(queries)} queries are not of unit length; the first: {shown}. "
            "Expected unit embeddings; divide each by its norm if it is of the gallery's kind"
        )


def _refuse_repeats(queries: NDArray[np.float32]) -> None:
    _, first, which = np.unique(queries, axis=0, return_index=True, return_inverse=True)
    originals = first[which.ravel()]
    repeats = np.flatnonzero(originals != np.arange(len(queries)))
    if repeats.size:
        shown = ", ".join(f"{row} (same as {originals[row]})" for row in repeats[:_SHOWN_ROWS])
        raise InputRejected(
            f"{repeats.size} of {len(queries)} queries repeat an earlier one: {shown}. A query "
            "asked twice costs twice, together or apart; ask it once and use its scores again"
        )
