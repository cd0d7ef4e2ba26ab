"""The spectrum that no eigenpair is kept of, by Lanczos quadrature.

The Ritz values of a block Krylov subspace, weighted by how much of its random first block lies
along each Ritz vector, are a quadrature rule for the spectral density: sums of f(λⱼ) over all n
eigenvalues become sums over a few nodes (G. H. Golub & G. Meurant, "Matrices, Moments and
Quadrature", 2010; S. Ubaru, J. Chen & Y. Saad, SIAM J. Matrix Anal. Appl. 38 (2017) 1075–1099). No
model of the noise is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scoreshield.projection.operator import FloatArray


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """Nodes and weights with Σ wⱼ f(xⱼ) ≈ Σ f(λᵢ) over the n eigenvalues of a matrix.

    Attributes
    ----------
    nodes : x, (m,), descending
    weights : w, (m,), non-negative, adding up to n
    """

    nodes: FloatArray
    weights: FloatArray

    @property
    def sum_of_squares(self) -> float:
        """Estimate of the squared Frobenius norm."""
        return float(self.weights @ self.nodes**2)

    def shift_for_trace(self, trace: float) -> float:
        """The shift c with Σ w (x + c)₊ = trace: the uniform dual shift of the whole matrix."""
        mass = np.cumsum(self.weights)
        shifts = (trace - np.cumsum(self.weights * self.nodes)) / np.maximum(mass, 1e-300)
        return float(shifts[np.flatnonzero((self.nodes + shifts > 0.0) & (mass > 0.0))[-1]])

    def mass_above(self, value: float) -> float:
        """Estimated number of eigenvalues above a value."""
        return float(self.weights[self.nodes > value].sum())

    def below(self, count: int) -> SpectralDensity:
        """What is left without the ``count`` largest eigenvalues; empty where that is all."""
        total = float(self.weights.sum())
        ahead = np.cumsum(self.weights) - self.weights
        left = np.clip(ahead + self.weights - count, 0.0, self.weights)
        kept = left > 0.0
        if count >= total or not kept.any():
            return SpectralDensity(np.empty(0), np.empty(0))
        return SpectralDensity(self.nodes[kept], left[kept] * (total - count) / left[kept].sum())

    def preceded_by(self, values: FloatArray) -> SpectralDensity:
        """With eigenvalues that are known exactly, descending, in front."""
        ceiling = float(values[-1]) if values.size else np.inf
        return SpectralDensity(
            np.concatenate([values, np.minimum(self.nodes, ceiling)]),
            np.concatenate([np.ones(values.size), self.weights]),
        )

    def matched(self, trace: float, added_variance: float, ceiling: float) -> SpectralDensity:
        """The same shape moved to a trace, widened, and cut at a ceiling.

        Parameters
        ----------
        trace : Σ of the eigenvalues after the move
        added_variance : mean square of a diagonal that was added, about its mean
        ceiling : largest value that an eigenvalue can have
        """
        count = float(self.weights.sum())
        mean = float(self.weights @ self.nodes) / count
        variance = float(self.weights @ (self.nodes - mean) ** 2) / count
        width = np.sqrt(1.0 + added_variance / variance) if variance > 0.0 else 1.0
        moved = (self.nodes - mean) * width + trace / count
        return SpectralDensity(np.minimum(moved, ceiling), self.weights)
