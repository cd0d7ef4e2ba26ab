"""Expected squared error of a release, before and after the projection.

Errors are squared Euclidean norms of scores and squared Frobenius norms of Gram matrices over all
n² entries; noise is that of :mod:`scoreshield.mechanisms.gaussian`, N(0, σ²) an entry, one draw a
pair in a Gram matrix and none on its diagonal. The grid and float32 of a release are neglected.

Notation: S the clean Gram matrix, G = S + σW the noisy one (W symmetric, zero diagonal, N(0, 1)
off it), 𝓔 the elliptope {X PSD, diag X = 1}, Π its exact Frobenius projection. The bounds on Π hold
for method ``nearest``; other methods approximate it or aim elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.special import gammainc, ndtr

from scoreshield.errors import ParameterError
from scoreshield.privacy.sensitivity import FULL_RANGE, ScoreRange

FloatArray = NDArray[np.float64]


def naive_scores_error(count: int, sigma: float) -> float:
    """E‖y − s‖² = σ²·count of ``count`` noisy scores y = s + σZ that are not clipped. Exact."""
    _check_sigma(sigma)
    return count * sigma**2


def clipped_scores_error(
    scores: npt.ArrayLike, sigma: float, score_range: ScoreRange = FULL_RANGE
) -> FloatArray:
    """E (clip(s + σZ, lo, hi) − s)² for each clean score s in [lo, hi]. Exact; curator only.

    Either side of s contributes σ²h(b), with b the distance to that end over σ and

        h(b) = ∫₀^∞ min(z, b)² φ(z) dz = ½ P(χ²₃ ≤ b²) + b² Φ(−b) ≤ ½,

    the second moment of a normal variable censored at b (Greene, Econometric Analysis, chapter 19).
    Hence never more than σ², the error without clipping. Clean scores are clipped to the range
    first, as the mechanism does.

    Raises
    ------
    ParameterError
        σ is not finite and at least 0, or a score is NaN.
    """
    _check_sigma(sigma)
    clean = np.asarray(scores, dtype=np.float64)
    if np.isnan(clean).any():
        raise ParameterError("scores hold NaN, expected numbers")
    clean = np.clip(clean, score_range.low, score_range.high)
    if sigma == 0:
        return np.zeros_like(clean)
    above = _censored_moment(score_range.high - clean, sigma)
    below = _censored_moment(clean - score_range.low, sigma)
    error: FloatArray = sigma**2 * (above + below)
    return error


def naive_gram_error(n: int, sigma: float) -> float:
    """E‖G − S‖_F² = n(n − 1)σ² of the noisy Gram matrix, not projected. Exact.

    Θ(n³) for a fixed ε under adjacency `record`, where σ grows with √n, and Θ(n²) under `output`.
    """
    _check_n(n)
    _check_sigma(sigma)
    return n * (n - 1) * sigma**2


def projected_gram_bound(n: int, sigma: float) -> float:
    """Upper bound on E‖Π(G) − S‖_F² for every S in 𝓔: min(2σn^{3/2}, n(n − 1)σ², 2n²).

    - 2σn^{3/2}: 𝓔 is convex and holds S, so ‖Π(G) − S‖² ≤ ⟨G − S, Π(G) − S⟩ = σ⟨W, Π(G) − S⟩. In
      expectation ⟨W, S⟩ vanishes, and ⟨W, X⟩ ≤ λ_max(W)·tr X = n·λ_max(W) on 𝓔, where
      E λ_max(W) ≤ 2√n: for a diagonal of variance 2 by comparison with a linear Gaussian process
      (Sudakov & Fernique; Davidson & Szarek 2001, theorem 2.11), and λ_max is convex, so taking the
      diagonal away can only lower it (Jensen).
    - n(n − 1)σ²: projections don't increase distances.
    - 2n²: ‖X‖_F ≤ n on 𝓔 and ⟨X, S⟩ ≥ 0.
    """
    return min(2 * sigma * n * math.sqrt(n), naive_gram_error(n, sigma), 2.0 * n * n)


def projected_gram_bound_record(n: int, multiplier: float, width: float = 2.0) -> float:
    """:func:`projected_gram_bound` under adjacency `record`, where σ = multiplier·width·√(n − 1).

    At most 2·multiplier·width·n²: O(n²) for fixed ε and δ against Θ(n³) without the projection.

    Parameters
    ----------
    n : number of records.
    multiplier : σ/Δ, from :func:`scoreshield.noise_multiplier`.
    width : width of the score range, 2 without a promise.
    """
    _check_n(n)
    return projected_gram_bound(n, multiplier * width * math.sqrt(n - 1))


def projected_gram_bound_output(n: int, multiplier: float, radius: float) -> float:
    """:func:`projected_gram_bound` under adjacency `output`, where σ = multiplier·τ/√2.

    At most √2·multiplier·τ·n^{3/2}: O(n^{3/2}) against Θ(n²) without the projection.

    Parameters
    ----------
    n : number of records.
    multiplier : σ/Δ, from :func:`scoreshield.noise_multiplier`.
    radius : τ, the largest Frobenius distance of neighbouring Gram matrices.
    """
    return projected_gram_bound(n, multiplier * radius / math.sqrt(2))


def low_rank_gram_bound(n: int, rank: int, sigma: float) -> float:
    """Upper bound on E‖Π(G) − S‖_F² for S of rank at most r: σ²r(6(n − r) + r + 3), about 6nrσ².

    Never above :func:`projected_gram_bound`, which it is combined with. The local bound is the
    smaller one for σ < √n/(3r): quadratic in σ, linear in r. A gallery of d features has rank at
    most d.

    Derivation: ‖Π(G) − S‖ ≤ σ·dist(W, N) for the normal cone N of 𝓔 at S (Oymak & Hassibi 2016,
    for any convex set and any σ). With U spanning the range of S and V its complement, N contains
    every diagonal matrix and every −V M Vᵀ with M PSD. A diagonal of variance 2 may therefore be
    added to W and taken out of N again; then C = VᵀWV, UᵀWU and VᵀWU are independent. Take the
    element V C Vᵀ + μ UUᵀ = μI − V(μI − C)Vᵀ of N with μ = max(λ_max(C), 0). It leaves

        2‖VᵀWU‖² + ‖UᵀWU − μI‖²,  in expectation at most  2r(n − r) + r(r + 1) + r·E μ²,

    and E μ² ≤ (E λ_max)² + Var λ_max ≤ 4(n − r) + 2 (as above, and the Gaussian Poincaré
    inequality).

    Raises
    ------
    ParameterError
        The rank is outside [1, n], n < 1, or σ is not finite and at least 0.
    """
    overall = projected_gram_bound(n, sigma)
    if not 1 <= rank <= n:
        raise ParameterError(f"the rank must lie in [1, {n}], found {rank!r}")
    return min(sigma**2 * rank * (6 * (n - rank) + rank + 3), overall)


def _censored_moment(distance: FloatArray, sigma: float) -> FloatArray:
    """h(distance/σ) of :func:`clipped_scores_error`: a sum of positive terms, nothing cancels."""
    # From b = 40 on h is ½ to the last bit, and no quotient overflows.
    b = np.minimum(distance, 40 * sigma) / sigma
    moment = 0.5 * gammainc(1.5, 0.5 * b**2) + b**2 * ndtr(-b)
    # h never exceeds ½; rounding of the sum can, by a unit in the last place.
    bounded: FloatArray = np.minimum(moment, 0.5)
    return bounded


def _check_sigma(sigma: float) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ParameterError(f"sigma must be finite and at least 0, found {sigma!r}")


def _check_n(n: int) -> None:
    if n < 1:
        raise ParameterError(f"n must be at least 1, found {n!r}")
