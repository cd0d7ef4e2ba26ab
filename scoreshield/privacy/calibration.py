"""Analytic calibration of the Gaussian mechanism (Balle & Wang 2018), rounded up throughout.

A Gaussian mechanism with noise σ and L2 sensitivity Δ is characterised by μ = Δ/σ alone. Its
smallest δ at a given ε is

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),

evaluated here in log space, where neither large ε nor tiny δ overflows or cancels to zero. Every
public function returns a value on the safe side and refuses when it cannot certify one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from scipy.special import log_ndtr

from scoreshield.errors import ParameterError
from scoreshield.precision import working_precision

# Relative error granted to log_ndtr and to the sums around it: 64 units in the last place.
_RELATIVE_ERROR = 64 * 2.0**-53
# Relative distance from the root at which results are returned, on the safe side.
_SAFETY = 1e-9

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e6
_SMALLEST_DELTA = 1e-300


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest certified σ/Δ that gives (ε, δ)-differential privacy.

    Never below the exact value; for ε in [0.01, 1000] and δ in [1e-50, 0.01] at most 1e-6 above it
    (relative), and at most 1e-5 at the corners of the domain.

    Raises
    ------
    ParameterError
        ε is outside [1e-6, 1e6], or δ outside [1e-300, 1).
    """
    check_privacy(epsilon, delta)
    log_target = math.log(delta)

    def suffices(multiplier: float) -> bool:
        return log_delta_bound(1 / multiplier, epsilon) <= log_target

    multiplier = _smallest_true(suffices, start=1.0) * (1 + _SAFETY)
    if not suffices(multiplier):
        raise ParameterError(
            f"could not certify a noise multiplier for epsilon={epsilon:g}, delta={delta:g}"
        )
    return multiplier


def smallest_epsilon(mu: float, delta: float) -> float:
    """The smallest certified ε at which a Gaussian mechanism with μ = Δ/σ has the given δ.

    Zero where δ(0) is already below δ.

    Raises
    ------
    ParameterError
        μ is negative or not finite, δ is outside [1e-300, 1), or ε would exceed 1e6.
    """
    _check_delta(delta)
    if not (math.isfinite(mu) and mu >= 0):
        raise ParameterError(f"mu must be a finite number of at least 0, found {mu!r}")
    if mu == 0:
        return 0.0
    log_target = math.log(delta)

    def suffices(epsilon: float) -> bool:
        return log_delta_bound(mu, epsilon) <= log_target

    if suffices(0.0):
        return 0.0
    epsilon = _smallest_true(suffices, start=1.0) * (1 + _SAFETY)
    if epsilon > LARGEST_EPSILON or not suffices(epsilon):
        raise ParameterError(f"mu={mu:g} has no certified epsilon up to {LARGEST_EPSILON:g}")
    return epsilon


def compose(multipliers: Iterable[float], delta: float) -> float:
    """Total ε at δ of Gaussian releases with the given noise multipliers σᵢ/Δᵢ.

    Exact: Gaussian mechanisms compose to one with μ² = Σ (Δᵢ/σᵢ)² (Dong, Roth & Su 2022,
    corollary 3.3). Rounded up.
    """
    ratios = []
    for multiplier in multipliers:
        if not (math.isfinite(multiplier) and multiplier > 0):
            raise ParameterError(f"noise multipliers must be positive, found {multiplier!r}")
        ratios.append(1 / multiplier)
    return smallest_epsilon(math.hypot(*ratios) * (1 + 2.0**-50), delta)


def log_delta_bound(mu: float, epsilon: float) -> float:
    """Upper bound on log δ(ε) of a Gaussian mechanism with μ = Δ/σ; +inf where it is unknown.

    Balle & Wang 2018, theorem 8, with the evaluation error of both terms added on the side that
    enlarges δ. A NaN anywhere becomes +inf, which no target accepts.
    """
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = float(log_ndtr(-mu / 2 - epsilon / mu))
    error = _RELATIVE_ERROR * (1 + abs(first) + abs(second) + epsilon)
    gap = epsilon + second - first - error
    if math.isnan(gap) or math.isnan(first) or gap >= 0:
        return math.inf
    if math.isinf(gap):
        return first + error
    return first + error + math.log(-math.expm1(gap))


def exact_delta_holds(mu: float, epsilon: float, delta: float) -> bool:
    """Whether δ(ε) ≤ δ, decided with 80-digit arithmetic.

    Independent of :func:`log_delta_bound`; a release asserts it on the σ it is about to use.
    """
    with working_precision(math.ceil(3.33 * (80 - math.log10(delta)))) as mpmath:
        half, ratio = mpmath.mpf(mu) / 2, mpmath.mpf(epsilon) / mpmath.mpf(mu)
        exact = mpmath.ncdf(half - ratio) - mpmath.exp(epsilon) * mpmath.ncdf(-half - ratio)
        return bool(exact <= mpmath.mpf(delta))


def check_privacy(epsilon: float, delta: float) -> None:
    """Refuse privacy parameters outside the supported domain, NaN included."""
    if not (SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON):
        raise ParameterError(
            f"epsilon must lie in [{SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}], found {epsilon!r}"
        )
    _check_delta(delta)


def _check_delta(delta: float) -> None:
    if not (_SMALLEST_DELTA <= delta < 1):
        raise ParameterError(f"delta must lie in [{_SMALLEST_DELTA:g}, 1), found {delta!r}")


def _smallest_true(suffices: Callable[[float], bool], start: float) -> float:
    """Smallest positive x, to 1e-12 relative, from which a monotone predicate holds."""
    upper = start
    while not suffices(upper):
        upper *= 2
        if not math.isfinite(upper):
            raise ParameterError("no value satisfies the privacy target")
    lower = upper / 2
    while suffices(lower):
        upper, lower = lower, lower / 2
        if lower < 1e-300:
            return upper
    while upper - lower > 1e-12 * upper:
        middle = lower + (upper - lower) / 2
        if suffices(middle):
            upper = middle
        else:
            lower = middle
    return upper
