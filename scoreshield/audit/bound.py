"""What wrong guesses prove about μ, and how many guesses it takes to prove it.

A mechanism that is μ-GDP satisfies α + β ≥ 2 Φ(−μ/2) for the error rates of any test (Dong, Roth &
Su 2022, section 2). An upper confidence bound on the share of wrong guesses, (α + β)/2, is
therefore a lower confidence bound on μ.
"""

from __future__ import annotations

import math

from scipy.special import betaincinv, ndtr, ndtri

MOST_RELEASES = 130_000
"""Releases a side: what a claim of μ = 0.237 (ε = 1 at δ = 1e-6) needs; 30 CPU seconds in all."""

_FEWEST_RELEASES = 3_000
# A fault this large must not escape by chance: σ at 0.9 of what the claim needs.
_FAULT = 0.9
_POWER = 0.99


def mu_lower_bound(wrong: int, guesses: int, confidence: float) -> float:
    """Lower confidence bound on μ from the number of wrong guesses; at least 0.

    The upper bound of Clopper & Pearson (1934) on p = (α + β)/2, then μ ≥ −2 Φ⁻¹(p). Half of the
    guesses err with probability α and half with β; their sum spreads no wider than a binomial with
    the mean probability (Hoeffding 1956), so the bound holds for the two together. It is
    tighter than bounding α and β one by one, each with half of the error probability.
    """
    if wrong >= guesses:
        return 0.0
    share = float(betaincinv(wrong + 1, guesses - wrong, confidence))
    return max(0.0, -2 * float(ndtri(share)))


def releases_needed(mu: float, confidence: float) -> int:
    """Releases a side that expose σ × 0.9 with probability 0.99, where a machine can afford it."""
    root = _loss(mu, confidence) / (mu * (1 / _FAULT - 1))
    return math.ceil(min(max(root**2, _FEWEST_RELEASES), MOST_RELEASES))


def detectable_sigma(mu: float, releases: int, confidence: float) -> float:
    """The share of σ below which the audit exposes it with probability 0.99."""
    return 1 / (1 + _loss(mu, confidence) / math.sqrt(releases) / mu)


def _loss(mu: float, confidence: float) -> float:
    """How far μ must exceed the claim to be exposed, times √releases.

    The share p = Φ(−μ/2) of wrong guesses among 2N has standard deviation √(p(1 − p)/2N), and
    dμ/dp = −2/φ(μ/2). The bound stays below the estimate by Φ⁻¹(confidence) of these, and chance
    may take away Φ⁻¹(0.99) more.
    """
    p = float(ndtr(-mu / 2))
    density = math.exp(-(mu**2) / 8) / math.sqrt(2 * math.pi)
    deviation = 2 / density * math.sqrt(p * (1 - p) / 2)
    return deviation * float(ndtri(confidence) + ndtri(_POWER))
