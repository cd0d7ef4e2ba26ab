"""Two adjacent galleries whose releases are as easy to tell apart as the adjacency allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange

AUDIT_FEATURES = 2
"""The worst pair lies in one plane."""

_STEP = 2.0**-FRACTION_BITS


@dataclass(frozen=True)
class Pair:
    """Two adjacent galleries that differ in record 0; all other records are equal."""

    before: NDArray[np.float32]
    """(n, d) fixed-point rows."""
    after: NDArray[np.float32]
    """(n, d) fixed-point rows."""
    gram_before: NDArray[np.float64]
    """(n, n) exact similarities G within the score range, diagonal 1."""
    gram_after: NDArray[np.float64]
    """(n, n) exact similarities G′ within the score range, diagonal 1."""
    worst_distance: float
    """Largest distance that the adjacency allows, on the strict upper triangle."""

    @property
    def distance(self) -> float:
        """‖G′ − G‖ on the strict upper triangle."""
        return float(np.linalg.norm(np.triu(self.gram_after - self.gram_before, 1)))

    @property
    def fraction(self) -> float:
        """The share of the worst distance at which the pair lies."""
        return self.distance / self.worst_distance


def worst_pair(mechanism: Mechanism, share: float) -> Pair:
    """Adjacent galleries at ``share`` of the largest distance that the adjacency allows.

    All records but one equal a unit vector u. Record 0 moves from a·u + w to b·u + w with w ⊥ u of
    the same length on both sides, so that it moves by b − a, and all of its n − 1 similarities with
    it. Among all places of [a, b] within the score range the one nearest to zero is taken, where
    float32 keeps every bit of the noise.

    Raises
    ------
    ParameterError
        The two galleries would be equal in fixed point.
    """
    n, adjacency, score_range = mechanism.n, mechanism.guarantee.adjacency, mechanism.score_range
    worst = _worst_distance(n, adjacency, score_range)
    width = score_range.high - score_range.low
    low, high = _scores(min(share * worst / math.sqrt(n - 1), width), score_range)
    if low >= high:
        raise ParameterError(
            f"adjacency {adjacency} with score range [{score_range.low:g}, {score_range.high:g}] "
            f"allows changes below the fixed-point step 2^-{FRACTION_BITS} only; there is no pair "
            "to audit"
        )
    if adjacency.kind != "shift":
        # A score at an end of the range is approached from beyond it: clipping is audited too.
        low = -1.0 if low - _STEP < score_range.low else low
        high = 1.0 if high + _STEP > score_range.high else high
    before, after = _rows(n, low, high), _rows(n, high, low)
    return Pair(
        before, after, _clean_gram(before, score_range), _clean_gram(after, score_range), worst
    )


def _worst_distance(n: int, adjacency: Adjacency, score_range: ScoreRange) -> float:
    """Distance on the strict upper triangle, from the adjacency's own words.

    Deliberately not taken from :mod:`scoreshield.privacy.sensitivity`, which is under audit.
    """
    if adjacency.kind == "output":
        return adjacency.reach / math.sqrt(2)
    return min(score_range.high - score_range.low, adjacency.reach) * math.sqrt(n - 1)


def _scores(length: float, score_range: ScoreRange) -> tuple[float, float]:
    """Fixed-point scores (a, b) within the range, at most ``length`` apart, nearest to zero."""
    low = min(max(-length / 2, score_range.low), score_range.high - length)
    return math.ceil(low / _STEP) * _STEP, math.floor((low + length) / _STEP) * _STEP


def _rows(n: int, score: float, other_score: float) -> NDArray[np.float32]:
    """Fixed-point gallery (n, 2) whose record 0 has ``score`` with each other record.

    ``other_score`` is that of the other gallery, which shares the component across; that component
    is rounded down, so that neither row is longer than one.
    """
    largest = max(abs(score), abs(other_score))
    rows = np.zeros((n, AUDIT_FEATURES))
    rows[1:, 0] = 1.0
    rows[0] = score, math.floor(math.sqrt(1 - largest**2) / _STEP) * _STEP
    return rows.astype(np.float32)


def _clean_gram(rows: NDArray[np.float32], score_range: ScoreRange) -> NDArray[np.float64]:
    """Exact similarities (n, n) within the score range, diagonal 1."""
    values = rows.astype(np.float64)
    gram: NDArray[np.float64] = np.clip(values @ values.T, score_range.low, score_range.high)
    np.fill_diagonal(gram, 1.0)
    return gram
