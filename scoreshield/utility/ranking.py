"""The k best records by released score, and how many of the truly best to expect among them.

The forecast is for a known vector of clean scores: E |top-k(clean) ∩ top-k(released)|, exact over
the noise. Applied to the private scores it is the curator's; applied to the scores of a public
stand-in (a public gallery of the same kind) it is anybody's. The released scores alone don't tell
it: that would take the clean scores' distribution, which the noise hides.

Released scores are clipped, and with the noise of a small ε many sit exactly at the upper end of
their range. A ranking can't tell these apart, so the forecast breaks ties at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.special import ndtr

from scoreshield.errors import InputRejected, ParameterError
from scoreshield.privacy.sensitivity import FULL_RANGE, ScoreRange
from scoreshield.utility.decision import check_sigma
from scoreshield.utility.metrics import FloatArray, checked_scores

# Noise beyond 9σ has probability 1e-19 and is left out.
_REACH = 9.0
_NODES_A_SIGMA = 16
_NEGLIGIBLE_LOG = math.log(1e-18)
_LEVELS_AT_ONCE, _RECORDS_AT_ONCE = 256, 256
_QUADRATURE_NODES, _HALVINGS = 12, 30


@dataclass(frozen=True)
class TopKForecast:
    """How well the k best by released score match the k best by clean score."""

    k: int
    expected_overlap: float
    """Expected number of records in both."""
    chance_overlap: float
    """The same for a random ranking, k²/n: a release that does no better ranks nothing."""

    @property
    def share(self) -> float:
        """Expected overlap over k."""
        return self.expected_overlap / self.k


def top_k(scores: npt.ArrayLike, k: int) -> NDArray[np.intp]:
    """Indices (k,) or (m, k) of the k largest of (n,) or (m, n) scores, best first.

    Ties go to the smaller index.

    Raises
    ------
    ParameterError
        k is outside [1, n].
    InputRejected
        Scores are not finite, or not of one or two dimensions.
    """
    table: NDArray[Any] = np.asarray(scores)
    if table.ndim not in (1, 2) or not np.isfinite(table).all():
        raise InputRejected(f"scores of shape {table.shape}: expected finite (n,) or (m, n)")
    _check_k(k, table.shape[-1])
    if table.ndim == 1:
        return _best(table, k)
    return np.array([_best(row, k) for row in table], dtype=np.intp).reshape(-1, k)


def expected_overlap(
    scores: npt.ArrayLike, sigma: float, k: int, score_range: ScoreRange = FULL_RANGE
) -> TopKForecast:
    """E |top-k(clean) ∩ top-k(released)| for clean scores (n,), to about 1e-5.

    Let A be the k best clean scores, B the rest, and N_A(y), N_B(y) how many of each exceed y after
    the noise: two independent Poisson-binomial numbers. At least a of A are among the k best when
    the a-th of A beats the (k − a + 1)-th of B, so without clipping the expectation is

        Σₐ ∫ P(N_B(y) ≤ k − a) dP(N_A(y) ≤ a − 1).

    With clipping the integral runs over (lo, hi]. When at most k exceed hi they are all among the
    best; when more do, k of them are chosen at random; when fewer than k exceed lo, the rest is
    chosen at random from those at lo. Work grows with n·k² a level y; levels at which surely more
    than k of B exceed y are skipped.

    Raises
    ------
    ParameterError
        k is outside [1, n], or σ is not positive and finite.
    InputRejected
        There are no scores, or some are not finite.
    """
    clean = np.clip(checked_scores(scores, "clean"), score_range.low, score_range.high)
    _check_k(k, clean.size)
    check_sigma(sigma)
    best = _best(clean, k)
    inside, outside = clean[best], np.delete(clean, best)
    overlap = (
        _decided_at_the_top(inside, outside, sigma, k, score_range.high)
        + _decided_between(inside, outside, sigma, k, score_range)
        + _decided_at_the_bottom(inside, outside, sigma, k, score_range.low)
    )
    return TopKForecast(k, min(overlap, float(k)), k * k / clean.size)


def _decided_at_the_top(
    inside: FloatArray, outside: FloatArray, sigma: float, k: int, high: float
) -> float:
    """Expected members of A among the best through exceeding hi."""
    a, b = np.arange(k + 1)[:, None], np.arange(k + 1)
    p_a = _exceedances(inside, np.array([high]), sigma, k)[0]
    p_b = _exceedances(outside, np.array([high]), sigma, k)[0]
    joint = np.outer(p_a, p_b)
    all_of_them = float(np.sum(np.where(a + b <= k, a * joint, 0.0)))
    # k·a/(a + b) of a + b > k: over all b by E 1/(a + N_B) = ∫ x^(a−1) E x^(N_B) dx on [0, 1].
    inverse = _inverse_moments(ndtr((outside - high) / sigma), k)
    few = np.where(a[1:] + b <= k, p_b / (a[1:] + b), 0.0).sum(axis=1)
    chosen = float(np.sum(p_a[1:] * k * a[1:, 0] * np.maximum(inverse - few, 0.0)))
    return all_of_them + chosen


def _decided_between(
    inside: FloatArray, outside: FloatArray, sigma: float, k: int, score_range: ScoreRange
) -> float:
    """Expected members of A among the best through their order strictly within the range."""
    total = 0.0
    for start, stop in _reached_intervals(inside, sigma, score_range):
        cells = 2 * math.ceil((stop - start) / sigma * _NODES_A_SIGMA / 2)
        levels = np.linspace(start, stop, cells + 1)
        not_too_many = np.cumsum(_exceedances(outside, levels, sigma, k), axis=1)[:, k - 1 :: -1]
        if not not_too_many.any():
            continue
        too_few = np.cumsum(_exceedances(inside, levels, sigma, k), axis=1)[:, :k]
        fine = _stieltjes(not_too_many, too_few)
        coarse = _stieltjes(not_too_many[::2], too_few[::2])
        # Richardson: the trapezoidal rule errs by a multiple of the squared step.
        total += (4 * fine - coarse) / 3
    return total


def _decided_at_the_bottom(
    inside: FloatArray, outside: FloatArray, sigma: float, k: int, low: float
) -> float:
    """Expected members of A that fill the last places from the scores at lo."""
    n = inside.size + outside.size
    a, b = np.arange(k + 1)[:, None], np.arange(k + 1)
    p_a = _exceedances(inside, np.array([low]), sigma, k)[0]
    p_b = _exceedances(outside, np.array([low]), sigma, k)[0]
    vacant = np.maximum(k - a - b, 0)
    share = (k - a) / np.maximum(n - a - b, 1)
    return float(np.sum(np.outer(p_a, p_b) * vacant * share))


def _exceedances(scores: FloatArray, levels: FloatArray, sigma: float, k: int) -> FloatArray:
    """P(exactly c of the noisy scores exceed y) for c = 0 … k, (levels, k + 1).

    Coefficients up to degree k of Π (1 − p + p x), which is 1 − p for a score below y and p for one
    above it. A level where more than k exceed y with probability 1 − 1e-18 gets zeros.
    """
    result = np.zeros((levels.size, k + 1))
    for start in range(0, levels.size, _LEVELS_AT_ONCE):
        part = slice(start, start + _LEVELS_AT_ONCE)
        near = scores[scores > levels[part].min() - _REACH * sigma]
        mean = np.zeros(levels[part].size)
        for first in range(0, near.size, _RECORDS_AT_ONCE):
            chunk = near[first : first + _RECORDS_AT_ONCE, None]
            mean += ndtr((chunk - levels[part]) / sigma).sum(axis=0)
        possible = np.flatnonzero(_log_chance_of_few(mean, k) > _NEGLIGIBLE_LOG) + start
        polynomial = np.zeros((possible.size, k + 1))
        polynomial[:, 0] = 1.0
        for first in range(0, near.size, _RECORDS_AT_ONCE) if possible.size else ():
            z = (near[first : first + _RECORDS_AT_ONCE] - levels[possible, None]) / sigma
            factors = _product_tree(np.stack([ndtr(-z), ndtr(z)], axis=-1), k)
            polynomial = _multiplied(polynomial, factors, k)
        result[possible] = polynomial
    return result


def _log_chance_of_few(mean: FloatArray, k: int) -> FloatArray:
    """Chernoff bound on log P(N ≤ k) of a Poisson-binomial number of that mean; 0 below k."""
    ratio = np.maximum(mean, k) / k
    bound: FloatArray = k * (1 - ratio + np.log(ratio))
    return bound


def _product_tree(factors: FloatArray, k: int) -> FloatArray:
    """Product over the middle axis of polynomials (levels, records, degree + 1), cut at x^k."""
    while factors.shape[1] > 1:
        if factors.shape[1] % 2:
            one = np.zeros((factors.shape[0], 1, factors.shape[2]))
            one[..., 0] = 1.0
            factors = np.concatenate([factors, one], axis=1)
        factors = _multiplied(factors[:, 0::2], factors[:, 1::2], k)
    return factors[:, 0]


def _multiplied(left: FloatArray, right: FloatArray, k: int) -> FloatArray:
    """Products of polynomials along the last axis, cut at x^k."""
    size = min(left.shape[-1] + right.shape[-1] - 1, k + 1)
    product = np.zeros((*left.shape[:-1], size))
    for power in range(left.shape[-1]):
        stop = min(power + right.shape[-1], size)
        product[..., power:stop] += left[..., power : power + 1] * right[..., : stop - power]
    return product


def _inverse_moments(chances: FloatArray, k: int) -> FloatArray:
    """E 1/(a + N) for a = 1 … k, N the number of successes of independent trials.

    ∫₀¹ x^(a−1) Π (1 − p + p x) dx, on panels that halve towards 1, where a large N has its mass.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
    ends = np.concatenate([1 - 2.0 ** -np.arange(_HALVINGS), [1.0]])
    moments = np.zeros(k)
    for left, right in pairwise(ends):
        x = (left + right) / 2 + (right - left) / 2 * nodes
        generating = np.exp([np.sum(np.log1p(-chances * (1 - at))) for at in x])
        powers = x ** np.arange(k)[:, None]
        moments += (right - left) / 2 * (powers * generating) @ weights
    return moments


def _reached_intervals(
    inside: FloatArray, sigma: float, score_range: ScoreRange
) -> list[tuple[float, float]]:
    """Where noisy scores of A fall, as disjoint intervals of the range."""
    intervals: list[tuple[float, float]] = []
    for score in np.sort(inside):
        start = max(float(score) - _REACH * sigma, score_range.low)
        stop = min(float(score) + _REACH * sigma, score_range.high)
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], stop)
        else:
            intervals.append((start, stop))
    return [(start, stop) for start, stop in intervals if stop > start]


def _stieltjes(integrand: FloatArray, measure: FloatArray) -> float:
    """Σ over columns of ∫ u dv by the trapezoidal rule, u and v given at the same levels."""
    return float(np.sum(0.5 * (integrand[1:] + integrand[:-1]) * np.diff(measure, axis=0)))


def _best(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    """Indices of the k largest of (n,) scores, best first, ties to the smaller index."""
    last = np.partition(scores, scores.size - k)[scores.size - k]
    above = np.flatnonzero(scores > last)
    chosen = np.concatenate([above, np.flatnonzero(scores == last)[: k - above.size]])
    chosen.sort()
    order: NDArray[np.intp] = chosen[np.argsort(-scores[chosen], kind="stable")]
    return order


def _check_k(k: int, n: int) -> None:
    if not 1 <= k <= n:
        raise ParameterError(f"k must lie in [1, {n}], the number of records; found {k!r}")
