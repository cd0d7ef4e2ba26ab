"""What a Gram release can carry, forecast from public sizes alone.

Gaussian noise of standard deviation σ on the entries of a symmetric n × n matrix fills the
semicircle |λ| ≤ 2σ√n. An eigenvalue s of the clean Gram matrix leaves it only when s > σ√n (Baik,
Ben Arous & Péché 2005; Benaych-Georges & Nadakuditi 2011). The trace is n, so a component must
carry more than σ/√n of it to be recoverable at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scoreshield.mechanism import Mechanism, sufficient_epsilon


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
