"""How a release command ended, for a machine and for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.storage.place import Place
from scoreshield.manifest.schema import Manifest
from scoreshield.regimes.registry import REGIMES


@dataclass(frozen=True)
class Outcome:
    """How a release command ended."""

    path: Place
    newly: bool
    """False where the release was finished before, and nothing was spent now."""
    manifest: Manifest

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        signature = self.manifest.signature
        return {
            "release_id": self.manifest.release_id,
            "private": self.manifest.private,
            "not_private_reason": self.manifest.not_private_reason,
            "path": str(self.path),
            "newly_released": self.newly,
            "epsilon": self.manifest.privacy.epsilon,
            "delta": self.manifest.privacy.delta,
            "method": self.manifest.post_processing.method,
            "converged": self.manifest.post_processing.converged,
            "public_key": None if signature is None else signature.public_key,
        }

    def to_text(self) -> str:
        """For a person."""
        privacy, projection = self.manifest.privacy, self.manifest.post_processing
        shape = self.manifest.shape
        made = (
            f"projection {projection.method}, {projection.iterations} iterations"
            if REGIMES[self.manifest.regime].projected
            else f"{shape.m} x {shape.n} scores, clipped to their range"
        )
        lead = "released" if self.newly else "already released, nothing was spent"
        lines = [
            f"{lead}: {self.path}",
            f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}, "
            f"adjacency {privacy.adjacency}",
            made,
        ]
        if not self.manifest.private:
            lines.insert(0, f"NOT PRIVATE: {self.manifest.not_private_reason}")
        if not projection.converged:
            lines.append(
                "WARNING: the projection stopped before it reached its tolerance; the release is "
                "valid, and projection.max_iterations is where to allow it more"
            )
        if projection.rank == 0:
            lines.append(
                "WARNING: nothing rose above the noise, so the released matrix is the identity"
            )
        elif self.manifest.forecast is not None and not self.manifest.forecast.carries_signal:
            lines.append(
                "WARNING: no component of the gallery could be told from the noise; 'scoreshield "
                "plan' says what would change that"
            )
        if not projection.feasible:
            lines.append("WARNING: entries are clipped only; the matrix need not be PSD")
        return "\n".join([*lines, f"read about it: scoreshield show {self.path}"])
