"""Composition of Gaussian releases as exact numbers: what is spent, what fits, what remains.

A release spends μ² = (Δ/σ)². Gaussian mechanisms compose exactly by adding these (Dong, Roth & Su
2022, corollary 3.3), adaptively too, so the ledger adds rational numbers and turns the sum into
(ε, δ) only to answer a question.
"""

from __future__ import annotations

import math
from fractions import Fraction

from scoreshield.errors import ParameterError
from scoreshield.privacy.calibration import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    exact_delta_holds,
    log_delta_bound,
    noise_multiplier,
    smallest_epsilon,
)

# Spends are multiples of 2^-128, rounded up: small denominators, and no spend rounds to nothing.
_SPEND_SCALE = 2**128


def spend_of(sensitivity: float, sigma: float) -> Fraction:
    """μ² = (Δ/σ)² of one release, rounded up to a multiple of 2^-128.

    Raises
    ------
    ParameterError
        Δ or σ is not a positive finite number.
    """
    if not (0 < sensitivity < math.inf and 0 < sigma < math.inf):
        raise ParameterError(
            f"sensitivity {sensitivity!r} and sigma {sigma!r} must be positive and finite"
        )
    exact = (Fraction(sensitivity) / Fraction(sigma)) ** 2
    return Fraction(math.ceil(exact * _SPEND_SCALE), _SPEND_SCALE)


def total_epsilon(spent: Fraction, delta: float) -> float:
    """ε at δ of everything spent so far, rounded up."""
    return smallest_epsilon(_root_up(spent), delta)


def fits(spent: Fraction, epsilon: float, delta: float) -> bool:
    """Whether a total spend Σμ² stays within an (ε, δ) budget."""
    if spent == 0:
        return True
    mu = _root_up(spent)
    return log_delta_bound(mu, epsilon) <= math.log(delta) and exact_delta_holds(mu, epsilon, delta)


def largest_epsilon(spent: Fraction, epsilon: float, delta: float, request_delta: float) -> float:
    """The largest ε that one more release at ``request_delta`` can have, rounded down.

    ``epsilon`` and ``delta`` are the budget. Zero where nothing fits any more.
    """
    available = 1 / Fraction(noise_multiplier(epsilon, delta)) ** 2 - spent
    if available <= 0:
        return 0.0
    try:
        highest = smallest_epsilon(_root_up(available), request_delta)
    except ParameterError:
        highest = LARGEST_EPSILON
    # The request will be calibrated from ε upwards; step down until its own spend fits.
    for shrink in (1e-8, 1e-6, 1e-4, 1e-2):
        candidate = highest * (1 - shrink)
        if candidate >= SMALLEST_EPSILON and fits(
            spent + _request(candidate, request_delta), epsilon, delta
        ):
            return candidate
    return 0.0


def _request(epsilon: float, delta: float) -> Fraction:
    return 1 / Fraction(noise_multiplier(epsilon, delta)) ** 2


def _root_up(square: Fraction) -> float:
    """√square as a float, rounded up."""
    return math.sqrt(square) * (1 + 2.0**-50)
