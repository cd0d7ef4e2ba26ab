"""What the noise on a score does to the decision that is taken with it.

A clean score s ∈ [lo, hi] is released as r = clip(s + σZ, lo, hi), Z ~ N(0, 1); a pair is accepted
when its score is at least a threshold. For lo < t ≤ hi clipping moves no score across t, so

    P(r ≥ t) = Φ((s − t)/σ),

while every release passes a threshold t ≤ lo and none passes t > hi: a share of the scores sits
exactly at lo and at hi, and no threshold divides it. The grid and the float32 of a release, 10⁻⁶ of
σ and 10⁻⁷ of a score, are neglected here.

Functions that take clean scores are the curator's: what they return depends on the gallery and has
no privacy guarantee. :func:`threshold_at_rate` takes released scores, so its threshold is
post-processing and free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

from scoreshield.errors import ParameterError
from scoreshield.privacy.sensitivity import FULL_RANGE, ScoreRange
from scoreshield.utility.metrics import FloatArray, RocCurve, checked_scores

RATE_TOLERANCE = 0.01
"""A sample's threshold must come this near the wanted rate, relative to it or its complement."""

_QUADRATURE_NODES = 16


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and the share of scores it accepts."""

    threshold: float
    rate: float
    """Share accepted: the false positive rate of impostor scores, the true positive rate of genuine
    ones."""
    lowest: float
    """Share that sits at the upper end of the range: no threshold up to there accepts less."""
    highest: float
    """Share above the lower end of the range: no threshold above there accepts more."""


def acceptance_probability(
    scores: npt.ArrayLike,
    threshold: npt.ArrayLike,
    sigma: float,
    score_range: ScoreRange = FULL_RANGE,
) -> FloatArray:
    """P(r ≥ t) for clean scores and thresholds, broadcast against each other.

    Clean scores are clipped to the range first, as the mechanism does.

    Raises
    ------
    ParameterError
        σ is not positive and finite, or a score or a threshold is NaN.
    """
    check_sigma(sigma)
    clean, at = _clean(scores, score_range), np.asarray(threshold, dtype=np.float64)
    _refuse_nan(at, "thresholds")
    outside = at <= score_range.low, at > score_range.high
    return np.select(outside, [1.0, 0.0], ndtr((clean - at) / sigma))


def flip_probability(
    scores: npt.ArrayLike,
    threshold: npt.ArrayLike,
    sigma: float,
    *,
    released_threshold: npt.ArrayLike | None = None,
    score_range: ScoreRange = FULL_RANGE,
) -> FloatArray:
    """Probability that the released score is decided otherwise than the clean one.

    Φ(−|s − t|/σ) for a threshold inside the range, and 0 outside, where both decisions are forced.

    Parameters
    ----------
    scores, threshold : clean scores s and threshold t, broadcast against each other; |s − t| is the
        margin.
    sigma : σ.
    released_threshold : the threshold for released scores where it was re-calibrated; t otherwise.

    Raises
    ------
    ParameterError
        σ is not positive and finite, or a score or a threshold is NaN.
    """
    check_sigma(sigma)
    at = np.asarray(threshold, dtype=np.float64)
    _refuse_nan(at, "thresholds")
    used = at if released_threshold is None else np.asarray(released_threshold, dtype=np.float64)
    clean = _clean(scores, score_range)
    # P(r < t) is that of the mirrored problem: 1 − P(r ≥ t) would lose its small values.
    outside = used <= score_range.low, used > score_range.high
    rejected = np.select(outside, [0.0, 1.0], ndtr((used - clean) / sigma))
    accepted = acceptance_probability(clean, used, sigma, score_range)
    return np.where(clean >= at, rejected, accepted)


def recalibrated_threshold(
    scores: npt.ArrayLike,
    sigma: float,
    rate: float,
    score_range: ScoreRange = FULL_RANGE,
) -> OperatingPoint:
    """The threshold at which released versions of clean scores are accepted at a wanted rate.

    Pass impostor scores for a false positive rate, genuine scores for a true positive rate. The
    rate at t, the mean of Φ((s − t)/σ), is continuous and falls strictly on (lo, hi], from the
    share above lo (not attained: at lo everything is accepted) to the share at hi. So a wanted rate
    in [share at hi, share above lo) has exactly one threshold there, and any other in (0, 1) none.
    Curator only.

    Raises
    ------
    ParameterError
        The rate is outside (0, 1) or unreachable, or σ is not positive and finite.
    InputRejected
        There are no scores, or some are not finite.
    """
    check_sigma(sigma)
    _check_rate(rate)
    clean = np.clip(checked_scores(scores, "clean"), score_range.low, score_range.high)
    low, high = score_range.low, score_range.high

    def accepted(threshold: float) -> float:
        return float(np.mean(ndtr((clean - threshold) / sigma)))

    at_top, above_bottom = accepted(high), accepted(low)
    _check_reachable(rate, at_top, above_bottom, score_range)
    threshold = float(brentq(lambda t: accepted(t) - rate, low, high, xtol=1e-15, rtol=1e-15))
    return OperatingPoint(threshold, accepted(threshold), at_top, above_bottom)


def threshold_at_rate(
    released: npt.ArrayLike, rate: float, score_range: ScoreRange = FULL_RANGE
) -> OperatingPoint:
    """The threshold at which a sample of released scores is accepted at a wanted rate.

    Pass released impostor scores for a false positive rate, genuine ones for a true positive rate.
    Post-processing of the release: free of privacy cost. Every threshold between two neighbouring
    scores accepts the same share; their midpoint is returned.

    Raises
    ------
    ParameterError
        The rate is outside (0, 1), or no threshold comes within 1 % of it (of its complement, where
        that is smaller): it falls among the scores clipped to an end of the range, or there are too
        few scores.
    InputRejected
        There are no scores, or some are not finite.
    """
    _check_rate(rate)
    scores = checked_scores(released, "released")
    at_top = float(np.mean(scores >= score_range.high))
    above_bottom = float(np.mean(scores > score_range.low))
    distinct, counts = np.unique(scores, return_counts=True)
    values, rates = distinct[::-1], np.cumsum(counts[::-1]) / scores.size
    nearest = int(np.argmin(np.abs(rates - rate)))
    found = float(rates[nearest])
    if abs(found - rate) > RATE_TOLERANCE * min(rate, 1 - rate):
        _check_reachable(rate, at_top, above_bottom, score_range)
        raise ParameterError(
            f"{scores.size} released scores cannot be accepted at a rate of {rate:g}: the nearest "
            f"rate of any threshold is {found:.6g}; ask for that, or supply more scores"
        )
    here = float(values[nearest])
    below = float(values[nearest + 1]) if nearest + 1 < values.size else here
    return OperatingPoint(here - (here - below) / 2, found, at_top, above_bottom)


def expected_roc(
    genuine: npt.ArrayLike,
    impostor: npt.ArrayLike,
    sigma: float,
    thresholds: npt.ArrayLike,
    score_range: ScoreRange = FULL_RANGE,
) -> RocCurve:
    """ROC of the released scores, in expectation over the noise, at given thresholds. Curator only.

    Raises
    ------
    ParameterError
        σ is not positive and finite, or a threshold is NaN.
    InputRejected
        A set of scores is empty or holds values that are not finite.
    """
    at = np.sort(np.asarray(thresholds, dtype=np.float64).ravel())[::-1]
    positive, negative = checked_scores(genuine, "genuine"), checked_scores(impostor, "impostor")

    def rate(scores: FloatArray) -> FloatArray:
        return np.array(
            [np.mean(acceptance_probability(scores, t, sigma, score_range)) for t in at]
        )

    return RocCurve(at, rate(negative), rate(positive))


def expected_auc(
    genuine: npt.ArrayLike,
    impostor: npt.ArrayLike,
    sigma: float,
    score_range: ScoreRange = FULL_RANGE,
) -> float:
    """AUC of the released scores, in expectation over independent noise. Curator only.

    ∫ TPR dFPR over thresholds in (lo, hi], by Gauss–Legendre panels no wider than 2σ, plus the two
    straight pieces of the ROC where both scores sit at the same end of the range.

    Raises
    ------
    ParameterError
        σ is not positive and finite.
    InputRejected
        A set of scores is empty or holds values that are not finite.
    """
    check_sigma(sigma)
    low, high = score_range.low, score_range.high
    positive = np.clip(checked_scores(genuine, "genuine"), low, high)
    negative = np.clip(checked_scores(impostor, "impostor"), low, high)
    nodes, weights = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
    edges = np.linspace(low, high, math.ceil((high - low) / (2 * sigma)) + 1)
    area = 0.0
    for left, right in pairwise(edges):
        at = (left + right) / 2 + (right - left) / 2 * nodes
        accepted = np.mean(ndtr((positive[:, None] - at) / sigma), axis=0)
        z = (negative[:, None] - at) / sigma
        density = np.mean(np.exp(-0.5 * z * z), axis=0) / (sigma * math.sqrt(2 * math.pi))
        area += float((right - left) / 2 * np.sum(weights * accepted * density))
    top = np.mean(ndtr((positive - high) / sigma)) * np.mean(ndtr((negative - high) / sigma))
    at_bottom = np.mean(ndtr((low - negative) / sigma))
    above_bottom = np.mean(ndtr((positive - low) / sigma))
    return area + float(top / 2 + at_bottom * (1 + above_bottom) / 2)


def lipschitz_constant(scores: npt.ArrayLike, resolution: float) -> float:
    """Steepness L of a sample's distribution function F at a resolution h.

    The largest share of scores in any window of length h, divided by h. A window of length x is
    covered by ⌈x/h⌉ such windows, so no window of any length x holds more than L·(x + h): F behaves
    as an L-Lipschitz function up to a step of L·h, which the bounds below take into account.

    Raises
    ------
    ParameterError
        The resolution is not positive and finite.
    InputRejected
        There are no scores, or some are not finite.
    """
    if not (math.isfinite(resolution) and resolution > 0):
        raise ParameterError(f"the resolution must be positive and finite, found {resolution!r}")
    ordered = np.sort(checked_scores(scores, "clean"))
    stop = np.searchsorted(ordered, ordered + resolution, side="right")
    return float(np.max(stop - np.arange(ordered.size)) / (ordered.size * resolution))


def rate_deviation_bound(sigma: float, lipschitz: float, resolution: float = 0.0) -> float:
    """Largest change of FPR or TPR at any one threshold that noise of size σ makes.

    |E F(t − σZ) − F(t)| ≤ L·E|σZ| = Lσ√(2/π) for an L-Lipschitz F, uniformly in t, and L·h more for
    a sample whose L was taken at resolution h; clipping changes neither side inside the range and
    both alike outside. Applied to both axes it bounds the distance between the clean and the
    released ROC at equal thresholds.

    Parameters
    ----------
    sigma : σ ≥ 0.
    lipschitz : L of the scores behind the rate.
    resolution : h at which L was measured; 0 for a Lipschitz distribution function.
    """
    _check_bound_arguments(sigma, lipschitz, resolution)
    return min(lipschitz * (sigma * math.sqrt(2 / math.pi) + resolution), 1.0)


def auc_deviation_bound(
    sigma: float, lipschitz_genuine: float, lipschitz_impostor: float, resolution: float = 0.0
) -> float:
    """Largest change of the AUC, in expectation over the noise: O(σ).

    The smaller of two bounds for independent pairs with Lipschitz distribution functions:

    - the sum of both rates' deviation bounds (replace one distribution after the other);
    - 2σ·min(L)/√π for scores that are not clipped, since genuine minus impostor has a distribution
      function as smooth as the smoother of both and noise √2·σ; clipping adds at most half the
      probability that both sit at one end, each at most Lσ/√(2π).

    Parameters
    ----------
    sigma : σ ≥ 0.
    lipschitz_genuine, lipschitz_impostor : L of either distribution function.
    resolution : h at which both were measured; 0 for Lipschitz distribution functions.
    """
    one_by_one = rate_deviation_bound(sigma, lipschitz_genuine, resolution) + rate_deviation_bound(
        sigma, lipschitz_impostor, resolution
    )
    smoother = min(lipschitz_genuine, lipschitz_impostor)
    at_an_end = sigma / math.sqrt(2 * math.pi) + resolution / 2
    jointly = smoother * (2 * sigma / math.sqrt(math.pi) + resolution)
    jointly += lipschitz_genuine * lipschitz_impostor * at_an_end**2
    return min(one_by_one, jointly, 1.0)


def _clean(scores: npt.ArrayLike, score_range: ScoreRange) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    _refuse_nan(values, "scores")
    return np.clip(values, score_range.low, score_range.high)


def _refuse_nan(values: FloatArray, name: str) -> None:
    if np.isnan(values).any():
        raise ParameterError(f"{name} hold NaN, expected numbers")


def check_sigma(sigma: float) -> None:
    """Raise ParameterError unless 0 < σ < ∞."""
    if not (math.isfinite(sigma) and sigma > 0):
        raise ParameterError(f"sigma must be positive and finite, found {sigma!r}")


def _check_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise ParameterError(
            f"the wanted rate must lie strictly between 0 and 1, found {rate!r}: any threshold "
            "beyond an end of the range rejects or accepts everything, so none is the one"
        )


def _check_bound_arguments(sigma: float, lipschitz: float, resolution: float) -> None:
    for name, value in (("sigma", sigma), ("lipschitz", lipschitz), ("resolution", resolution)):
        if not (math.isfinite(value) and value >= 0):
            raise ParameterError(f"{name} must be finite and at least 0, found {value!r}")


def _check_reachable(
    rate: float, at_top: float, above_bottom: float, score_range: ScoreRange
) -> None:
    if at_top <= rate < above_bottom:
        return
    end, share = (
        (score_range.high, at_top) if rate < at_top else (score_range.low, 1 - above_bottom)
    )
    raise ParameterError(
        f"no threshold accepts a share of {rate:g}: {share:.6g} of the released scores are clipped "
        f"to {end:g}, all of which are accepted or none. Reachable rates run from {at_top:.6g} to "
        f"just below {above_bottom:.6g}; ask for one of them, or release with less noise"
    )
