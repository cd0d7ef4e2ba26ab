"""What a release can carry, forecast from public sizes alone.

Gaussian noise of standard deviation σ on the entries of a symmetric n × n matrix fills the
semicircle |λ| ≤ 2σ√n. An eigenvalue s of the clean Gram matrix leaves it only when s > σ√n (Baik,
Ben Arous & Péché 2005; Benaych-Georges & Nadakuditi 2011). The trace is n, so a component must
carry more than σ/√n of it to be recoverable at all.

A released score s + σZ is clipped to its range [lo, hi]. Whoever guesses the middle of the range
errs by at most half its width w, so a single score tells more than that guess only when σ < w/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scoreshield.mechanisms.gaussian import Mechanism, sufficient_epsilon
from scoreshield.privacy.sensitivity import ScoreRange, scores_sensitivity
from scoreshield.utility.bounds import clipped_scores_error


@dataclass(frozen=True)
class GramForecast:
    """Data-free forecast of a Gram release."""

    sigma: float
    """Standard deviation of the noise on one off-diagonal similarity."""
    noise_edge: float
    """2σ√n, the largest eigenvalue of the noise."""
    recoverable_share: float
    """σ/√n, the share of the trace a component must exceed to be recoverable."""
    epsilon_for_signal: float
    """The ε at which that share falls to one, at the same δ and adjacency."""
    shift_radius_for_signal: float
    """The record shift up to which the same ε and δ leave a recoverable share of at most one."""

    @property
    def carries_signal(self) -> bool:
        """Whether any component at all could be told from the noise."""
        return self.recoverable_share < 1


def forecast_gram(mechanism: Mechanism) -> GramForecast:
    """Forecast for a calibrated Gram release."""
    root = math.sqrt(mechanism.n)
    guarantee = mechanism.guarantee
    multiplier = mechanism.sigma / guarantee.sensitivity.value
    return GramForecast(
        sigma=mechanism.sigma,
        noise_edge=2 * mechanism.sigma * root,
        recoverable_share=mechanism.sigma / root,
        epsilon_for_signal=sufficient_epsilon(guarantee.sensitivity.value / root, guarantee.delta),
        shift_radius_for_signal=min(2.0, root / (multiplier * math.sqrt(mechanism.n - 1))),
    )


@dataclass(frozen=True)
class ScoresForecast:
    """Data-free forecast of a release of scores."""

    sigma: float
    """Standard deviation of the noise on one score: m queries calibrated jointly."""
    separate_sigma: float
    """The same for m releases of one query each that compose to the same ε and δ."""
    half_range: float
    """w/2, the most that a guess of the middle of the score range can err by."""
    error_in_the_middle: float
    """Root mean squared error of a released score whose clean value is the middle of the range."""
    error_at_an_end: float
    """Root mean squared error of a released score whose clean value is an end of the range."""
    epsilon_for_signal: float
    """The ε at which σ falls to w/2, at the same δ and adjacency."""

    @property
    def carries_signal(self) -> bool:
        """Whether a single score tells more than its range does."""
        return self.sigma < self.half_range


def forecast_scores(mechanism: Mechanism) -> ScoresForecast:
    """Forecast for a calibrated release of scores."""
    guarantee, score_range = mechanism.guarantee, mechanism.score_range
    half_range = (score_range.high - score_range.low) / 2
    middle, end = clipped_errors(mechanism.sigma, score_range)
    return ScoresForecast(
        sigma=mechanism.sigma,
        separate_sigma=separate_sigma(mechanism),
        half_range=half_range,
        error_in_the_middle=middle,
        error_at_an_end=end,
        epsilon_for_signal=sufficient_epsilon(
            guarantee.sensitivity.value / half_range, guarantee.delta
        ),
    )


def separate_sigma(mechanism: Mechanism) -> float:
    """σ of m releases of one query each that together give what a joint release gives.

    Each spends μ²/m, so its noise is √m·(σ/Δ) times the Δ of one query. Never below the joint σ:
    the joint Δ is at most √m times that of one query, which it reaches where all queries point the
    same way or a score range caps both.
    """
    if mechanism.m is None:
        return mechanism.sigma
    one = np.zeros((1, mechanism.d), dtype=np.float32)
    one[0, 0] = 1.0
    guarantee = mechanism.guarantee
    alone = scores_sensitivity(one, guarantee.adjacency, mechanism.score_range, mechanism.grid)
    multiplier = mechanism.sigma / guarantee.sensitivity.value
    return multiplier * math.sqrt(mechanism.m) * alone.value


def clipped_errors(sigma: float, score_range: ScoreRange) -> tuple[float, float]:
    """Root mean squared error of a clipped score in the middle, and at an end, of its range."""
    low, high = score_range.low, score_range.high
    middle, end = clipped_scores_error([(low + high) / 2, high], sigma, score_range)
    return math.sqrt(middle), math.sqrt(end)
