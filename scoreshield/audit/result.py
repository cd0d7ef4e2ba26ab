"""What an audit found: the claim and what was demonstrated, side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AuditResult:
    """The claim and what the audit demonstrated, side by side."""

    adjacency: str
    n: int
    releases: int
    """Releases of each of the two galleries."""
    confidence: float
    """Probability with which the lower bounds hold."""
    pair_fraction: float
    """Share of the worst distance at which the audited pair lies."""
    false_alarm_rate: float
    """α: share of the releases of G taken for G′."""
    miss_rate: float
    """β: share of the releases of G′ taken for G."""
    claimed_mu: float
    mu_lower_bound: float
    claimed_epsilon: float
    epsilon_lower_bound: float
    delta: float
    detectable_sigma: float
    """A σ below this share of the claimed one would be exposed with probability 0.99."""
    off_grid: int
    repeated_noise: int

    @property
    def tightness(self) -> float:
        """Lower bound over claim, in μ: near one from below when claim and noise agree."""
        return self.mu_lower_bound / self.claimed_mu

    @property
    def faults(self) -> tuple[str, ...]:
        """Each way in which the releases contradict the claim, in words."""
        found = []
        if self.mu_lower_bound > self.claimed_mu:
            found.append(
                f"the releases show mu of at least {self.mu_lower_bound:.4g} where "
                f"{self.claimed_mu:.4g} is claimed: the noise is too small for the sensitivity"
            )
        if self.off_grid:
            found.append(
                f"{self.off_grid} released values are no multiple of the grid: their low-order "
                "bits may reveal the clean value"
            )
        if self.repeated_noise:
            found.append(
                f"{self.repeated_noise} releases used noise that another one had used: their "
                "difference is free of noise"
            )
        return tuple(found)

    @property
    def consistent(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            **asdict(self),
            "tightness": self.tightness,
            "consistent": self.consistent,
            "faults": list(self.faults),
        }

    def to_text(self) -> str:
        """The same for a person."""
        verdict = "consistent with the claim" if self.consistent else "CONTRADICTS THE CLAIM"
        return "\n".join(
            [
                f"audit: {verdict}",
                f"  claimed       mu {self.claimed_mu:.4g}, epsilon {self.claimed_epsilon:.4g} at "
                f"delta {self.delta:g}, adjacency {self.adjacency}",
                f"  demonstrated  mu at least {self.mu_lower_bound:.4g}, epsilon at least "
                f"{self.epsilon_lower_bound:.4g} (confidence {self.confidence:g}), "
                f"{100 * self.tightness:.1f} % of the claimed mu",
                f"  {2 * self.releases} releases of {self.n} records at "
                f"{100 * self.pair_fraction:.3g} % of the worst distance; guesses wrong in "
                f"{100 * self.false_alarm_rate:.2f} % and {100 * self.miss_rate:.2f} %",
                f"  a sigma below {self.detectable_sigma:.3f} of the claimed one would be exposed",
                *(f"  FAULT: {fault}" for fault in self.faults),
            ]
        )
