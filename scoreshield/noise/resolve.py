"""Exact decision of a rounded Gaussian sample in multiple precision.

A sample is |k| = round(|X|/g) with P(|X|/σ > z) = 2p, where p ∈ (0, ½) is known only to a number of
binary digits. Rather than invert the normal distribution, the decision compares p with the tail
probability Q at the two boundaries (|k| ± ½) g/σ, enclosed by mpmath, and asks for more digits of p
while its interval straddles one.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from scipy.special import ndtri

from scoreshield.precision import working_precision

# Digits carried beyond those of p, and the part of them granted to mpmath's own error.
_GUARD_BITS = 96
_TRUSTED_BITS = 64


def resolve_magnitude(tail: int, ratio: float, further_bits: Callable[[], bytes]) -> int:
    """|k| for the uniform p = (tail + v)/2^64, where v ∈ [0, 1) continues in ``further_bits``.

    Parameters
    ----------
    tail : the 63 leading bits already drawn.
    ratio : σ/g.
    further_bits : supplies the next bits of p, most significant first.
    """
    numerator, bits = tail, 64
    candidate = _float_estimate(numerator, bits, ratio)
    while True:
        step = _compare(numerator, bits, candidate, ratio)
        if step is None:
            more = further_bits()
            numerator = (numerator << (8 * len(more))) | int.from_bytes(more, "big")
            bits += 8 * len(more)
            candidate = _float_estimate(numerator, bits, ratio)
        elif step == 0:
            return candidate
        else:
            candidate += step


def _float_estimate(numerator: int, bits: int, ratio: float) -> int:
    probability = float(Fraction(2 * numerator + 1, 2 ** (bits + 1)))
    return round(-float(ndtri(probability)) * ratio)


def _compare(numerator: int, bits: int, candidate: int, ratio: float) -> int | None:
    """0 if p surely belongs to ``candidate``, ±1 to move towards it, None if p needs more bits."""
    with working_precision(bits + _GUARD_BITS) as mpmath:
        low, high = (mpmath.ldexp(mpmath.mpf(numerator + up), -bits) for up in (0, 1))
        outer_low, outer_high = _tail_enclosure(mpmath, 2 * candidate + 1, ratio, bits)
        if high < outer_low:
            return 1
        if not low > outer_high:
            return None
        if candidate == 0:
            return 0
        inner_low, inner_high = _tail_enclosure(mpmath, 2 * candidate - 1, ratio, bits)
        if low > inner_high:
            return -1
        return 0 if high < inner_low else None


def _tail_enclosure(mpmath: Any, doubled: int, ratio: float, bits: int) -> tuple[Any, Any]:
    """Bounds on Q(½·doubled/ratio), the upper tail probability of the standard normal."""
    boundary = mpmath.mpf(doubled) / (2 * mpmath.mpf(ratio))
    probability = mpmath.ncdf(-boundary)
    error = mpmath.ldexp(probability, -(bits + _TRUSTED_BITS))
    return probability - error, probability + error
