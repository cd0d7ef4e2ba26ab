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
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from scoreshield.mechanisms.gaussian import Mechanism, sufficient_epsilon
from scoreshield.privacy.sensitivity import ScoreRange, scores_sensitivity
from scoreshield.utility.bounds import clipped_scores_error


@dataclass(frozen=True)
class Forecast(ABC):
    """What a release can carry, in numbers and in words."""

    sigma: float
    """Standard deviation of the noise on one released value."""

    @property
    @abstractmethod
    def carries_signal(self) -> bool:
        """Whether anything at all could be told from the noise."""

    @abstractmethod
    def to_lines(self, mechanism: Mechanism) -> list[str]:
        """For the curator, before anything is spent."""

    @abstractmethod
    def advice(self, mechanism: Mechanism) -> str | None:
        """Where the noise would bury everything, what would change it; None where it does not."""

    @abstractmethod
    def for_readers(self, mechanism: Mechanism) -> str:
        """For whoever uses the release."""


@dataclass(frozen=True)
class GramForecast(Forecast):
    """Data-free forecast of a Gram release."""

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

    def to_lines(self, mechanism: Mechanism) -> list[str]:
        """Noise, its edge, and the share of the trace that stands out."""
        return [
            f"forecast: noise of {self.sigma:.4g} on each similarity; noise edge 2*sigma*sqrt(n) = "
            f"{self.noise_edge:.4g}",
            "a component is recoverable when it carries more than "
            f"{self.recoverable_share:.3g} of the trace (sigma/sqrt(n))",
        ]

    def advice(self, mechanism: Mechanism) -> str | None:
        """From which ε on, or under which other guarantee, a component would stand out."""
        if self.carries_signal:
            return None
        guarantee = mechanism.guarantee
        advice = (
            "This release would carry no recoverable signal: a component would need "
            f"{self.recoverable_share:.2f} times the whole trace to stand out of the noise. "
            f"At delta {guarantee.delta:g} and adjacency {guarantee.adjacency} signal becomes "
            f"possible above epsilon {self.epsilon_for_signal:.3g}; at epsilon "
            f"{guarantee.epsilon:g} it does under adjacency shift with a radius below "
            f"{self.shift_radius_for_signal:.3g}"
        )
        if guarantee.adjacency.kind == "record" and mechanism.score_range.width > 1:
            advice += (
                ", or with score_range: [0, 1] at a lower epsilon if all similarities lie there"
            )
        return advice + "."

    def for_readers(self, mechanism: Mechanism) -> str:
        """Which components and eigenvalues could be told from the noise."""
        if self.carries_signal:
            verdict = (
                "A component (a direction that many embeddings share) can be told from the noise "
                f"only if it carries more than {100 * self.recoverable_share:.3g} % of the total."
            )
        else:
            verdict = (
                "At this noise no component can be told from it: the release carries no "
                "recoverable signal. It would from epsilon = "
                f"{self.epsilon_for_signal:.4g} on."
            )
        return (
            f"{verdict} Eigenvalues below {self.noise_edge:.4g} were indistinguishable from noise."
        )


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
class ScoresForecast(Forecast):
    """Data-free forecast of a release of scores, m queries calibrated jointly."""

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

    def to_lines(self, mechanism: Mechanism) -> list[str]:
        """What queries gain by being asked together; noise, and errors once clipped."""
        m, score_range = mechanism.m or 1, mechanism.score_range
        joint = (
            f"calibration: {m} queries jointly, sigma {self.sigma:.4g}; as {m} releases of one "
            f"query each at the same total epsilon, sigma {self.separate_sigma:.4g}. The joint "
            "one is never worse, so it is used"
        )
        return [
            *([joint] if m > 1 else []),
            f"forecast: noise of {self.sigma:.4g} on each score of a range "
            f"[{score_range.low:g}, {score_range.high:g}]; once clipped, a score in the middle "
            f"errs by {self.error_in_the_middle:.4g} and one at an end by "
            f"{self.error_at_an_end:.4g} (root mean square)",
        ]

    def advice(self, mechanism: Mechanism) -> str | None:
        """What many scores together still tell, and what would make single ones tell."""
        if self.carries_signal:
            return None
        guarantee = mechanism.guarantee
        return (
            f"A single score would tell less than its range does: sigma {self.sigma:.4g} is at "
            f"least half the width of the range, {self.half_range:g}. Only what many scores share "
            "can be told, such as a query's mean over k records, to about sigma/sqrt(k) once the "
            "pull of clipping is allowed for. At "
            f"delta {guarantee.delta:g} and adjacency {guarantee.adjacency} single scores begin to "
            f"tell above epsilon {self.epsilon_for_signal:.3g}; fewer queries lower sigma as well."
        )

    def for_readers(self, mechanism: Mechanism) -> str:
        """How far single scores and their means err."""
        score_range = mechanism.score_range
        verdict = (
            ""
            if self.carries_signal
            else " A single score tells less than its range does; only what many scores share can "
            "be told from the noise."
        )
        return (
            f"A clean score in the middle of [{score_range.low:g}, {score_range.high:g}] errs by "
            f"{self.error_in_the_middle:.4g} (root mean square), one at an end by "
            f"{self.error_at_an_end:.4g}. The mean of k scores of one query errs by about "
            f"sigma/sqrt(k) before clipping.{verdict}"
        )


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
    one = np.eye(1, mechanism.d, dtype=np.float32)
    guarantee = mechanism.guarantee
    alone = scores_sensitivity(one, guarantee.adjacency, mechanism.score_range, mechanism.grid)
    multiplier = mechanism.sigma / guarantee.sensitivity.value
    return multiplier * math.sqrt(mechanism.m) * alone.value


def clipped_errors(sigma: float, score_range: ScoreRange) -> tuple[float, float]:
    """Root mean squared error of a clipped score in the middle, and at an end, of its range."""
    low, high = score_range.low, score_range.high
    middle, end = clipped_scores_error([(low + high) / 2, high], sigma, score_range)
    return math.sqrt(middle), math.sqrt(end)
