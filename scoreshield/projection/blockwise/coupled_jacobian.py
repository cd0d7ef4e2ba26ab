"""The generalised Jacobian of the dual of ``nearest``, from the pairs that are kept.

It couples a positive eigenpair (λᵢ, vᵢ) with every other one, through the weight λᵢ/(λᵢ − λⱼ).
"""

from __future__ import annotations

from typing import Generic

import numpy as np

from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.panels import P, PanelAlgebra, Term, scale_rows
from scoreshield.projection.blockwise.subspace import RitzPairs
from scoreshield.projection.operator import FloatArray


class CoupledJacobian(Generic[P]):
    """The generalised Jacobian with the pairs that are not kept entering by their mean weight.

    With Ω on the kept pairs as in ``nearest``, w the mean weight over the rest, M = Vᵀ Diag(h) V:

        J h = 2 diag(V Diag(w) Vᵀ) ∘ h + diag V ((Ω − w1ᵀ − 1wᵀ) ∘ M) Vᵀ.

    Parameters
    ----------
    algebra : home of the panels
    pairs : kept Ritz pairs of A
    rest : spectral density of A below them
    """

    def __init__(
        self, algebra: PanelAlgebra[P], pairs: RitzPairs[P], rest: SpectralDensity
    ) -> None:
        self._algebra, self._vectors = algebra, pairs.vectors
        values = pairs.values
        mean_weight = np.zeros(values.size)
        positive = values > 0.0
        if rest.nodes.size:
            own = values[positive][:, None]
            share = rest.weights / rest.weights.sum()
            mean_weight[positive] = (own / (own - rest.nodes)) @ share
        self._within = pair_weights(values) - mean_weight[:, None] - mean_weight[None, :]
        self.diagonal = 2.0 * self._quadratic(np.diag(mean_weight))
        """Part of the Jacobian's diagonal that meets h entry by entry, (n,)."""

    def product(self, h: FloatArray) -> FloatArray:
        """Product of the Jacobian with a vector, (n,) → (n,)."""
        scaled = scale_rows(self._algebra, self._vectors, h)
        middle = self._within * self._algebra.inner(self._vectors, scaled)
        return self.diagonal * h + self._quadratic(middle)

    def _quadratic(self, middle: FloatArray) -> FloatArray:
        """diag V·C·Vᵀ, (n,)."""
        left = self._algebra.combine([Term(self._vectors, middle)])
        return self._algebra.row_inner(left, self._vectors)


def pair_weights(values: FloatArray) -> FloatArray:
    """Ω: 1 for two positive eigenvalues, 0 for none, λᵢ/(λᵢ − λⱼ) for λᵢ > 0 ≥ λⱼ; (k, k)."""
    positive = np.maximum(values, 0.0)
    sizes = np.abs(values)[:, None] + np.abs(values)[None, :]
    lifted = np.where(sizes > 0.0, (positive[:, None] + positive[None, :]), 0.0)
    weights: FloatArray = lifted / np.where(sizes > 0.0, sizes, 1.0)
    return weights
