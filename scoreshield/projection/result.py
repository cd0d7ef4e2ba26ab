"""What a projection returns: a feasible Gram matrix as factor and diagonal, and how it came about.

The matrix X = F·Fᵀ off the diagonal with 1 on it is positive semidefinite by construction, because
it equals F·Fᵀ + Diag(d) with d = 1 − ‖Fᵢ‖² ≥ 0; no eigenvalue has to be trusted for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.certificate import Certificate
from scoreshield.projection.operator import FloatArray, panels

ROW_SCALING = "rows of the factor scaled to norm at most 1, diagonal completed to 1"
"""The post-step that makes every result exactly feasible, in the words of the manifest."""

Plain = bool | int | float | str | None
"""A parameter value that JSON can hold."""


@dataclass(frozen=True)
class Iteration:
    """One step of a projection.

    Attributes
    ----------
    number : counted from 1; the start is the first, since its PSD iterate is evaluated too
    residual : rms over the rows of diag(X) − 1 for the PSD iterate X, which vanishes exactly when
        X is feasible (PSD and unit diagonal imply the box)
    rank : number of positive eigenvalues of the iterate
    eigendecompositions : spent up to and including this step; in a blockwise form the refinements
        of its subspace
    products : products G × (n × k) up to and including this step, in a blockwise form
    """

    number: int
    residual: float
    rank: int
    eigendecompositions: int
    products: int = 0


def continued(before: Sequence[Iteration], steps: Sequence[Iteration]) -> tuple[Iteration, ...]:
    """A history that goes on with steps counted from 1."""
    last = before[-1]
    return (
        *before,
        *(
            replace(
                step,
                number=last.number + step.number,
                eigendecompositions=last.eigendecompositions + step.eigendecompositions,
                products=last.products + step.products,
            )
            for step in steps
        ),
    )


@dataclass(frozen=True, eq=False)
class Projection:
    """A noisy Gram matrix projected onto the elliptope {X : X PSD, diag X = 1}.

    Attributes
    ----------
    factor : (n, r) float64 with ‖factorᵢ‖ ≤ 1, or None for a method that has no factor
    diagonal : (n,) float64 ≥ 0 with ‖factorᵢ‖² + diagonalᵢ = 1, or None with the factor
    method : name in the registry
    rank : r, or n without a factor
    iterations : PSD iterates evaluated, the start's included
    products : products G × (n × k) made; 0 where G was at hand as an array
    history : the steps, first to last
    certificate : how far from feasible and from the exact projection, where known
    parameters : what shaped the result, as plain values for a manifest
    converged : whether the method reached its tolerance
    feasible : whether the result lies in the elliptope
    dual : (n,) float64, dual vector y with X ≈ P₊(G + Diag(y)) where the method finds one
    linear_rate : factor by which the residual shrinks a step, estimated from the history
    clipped : (n, n) float64, the result of a method without a factor
    """

    factor: FloatArray | None = field(repr=False)
    diagonal: FloatArray | None = field(repr=False)
    method: str
    rank: int
    iterations: int
    products: int
    history: tuple[Iteration, ...] = field(repr=False)
    certificate: Certificate | None
    parameters: Mapping[str, Plain]
    converged: bool
    feasible: bool
    dual: FloatArray | None = field(default=None, repr=False)
    linear_rate: float | None = None
    clipped: FloatArray | None = field(default=None, repr=False)

    def gram(self) -> FloatArray:
        """The projected matrix, (n, n) float64.

        Exactly symmetric, exactly 1 on the diagonal, entries in [−1, 1].
        """
        if self.factor is not None:
            return gram_of_factor(self.factor)
        if self.clipped is not None:
            return self.clipped.copy()
        raise ParameterError(
            f"the {self.method!r} projection holds neither a factor nor a matrix; "
            "build it with from_factor or with clipped="
        )


def from_factor(
    factor: FloatArray,
    *,
    method: str,
    parameters: Mapping[str, Plain],
    certificate: Certificate | None = None,
    products: int = 0,
    history: Sequence[Iteration] = (),
    converged: bool = True,
    dual: FloatArray | None = None,
    linear_rate: float | None = None,
) -> Projection:
    """Projection from any factor, made exactly feasible by row scaling.

    Rows of norm above 1 are scaled to norm 1 and d = 1 − ‖Fᵢ‖² completes the diagonal. The
    post-step is stated in the parameters.

    Parameters
    ----------
    factor : (n, r) finite numbers
    method, parameters, certificate, products, history, converged, dual, linear_rate : as in
        :class:`Projection`

    Raises
    ------
    ParameterError
        When the factor is no finite two-dimensional array.
    """
    if factor.ndim != 2 or not np.all(np.isfinite(factor)):
        raise ParameterError(
            f"the factor, shape {factor.shape}, must be a finite (n, r) array; "
            "the iteration that made it has diverged"
        )
    scaled = rows_within_unit_ball(factor)
    return Projection(
        factor=scaled,
        diagonal=completed_diagonal(scaled),
        method=method,
        rank=scaled.shape[1],
        iterations=len(history),
        products=products,
        history=tuple(history),
        certificate=certificate,
        parameters={**parameters, "post_step": ROW_SCALING},
        converged=converged,
        feasible=True,
        dual=dual,
        linear_rate=linear_rate,
    )


def rows_within_unit_ball(factor: FloatArray) -> FloatArray:
    """Rows of norm above 1 scaled to norm 1, (n, r) → (n, r).

    The scale falls short of 1/‖Fᵢ‖ by (r + 4) u, where u = 2⁻⁵³ is the unit of rounding, so that
    ‖Fᵢ‖ ≤ 1 holds in whatever order the squares are added up.
    """
    unit = 0.5 * float(np.finfo(np.float64).eps)
    shortfall = 1.0 - (factor.shape[1] + 4) * unit
    norms = np.sqrt(squared_row_norms(factor))
    scale = np.where(norms > shortfall, shortfall / np.maximum(norms, shortfall), 1.0)
    return np.ascontiguousarray(factor * scale[:, None])


def completed_diagonal(factor: FloatArray) -> FloatArray:
    """d = 1 − ‖Fᵢ‖² ≥ 0 for a factor with rows in the unit ball, (n, r) → (n,)."""
    return np.maximum(1.0 - squared_row_norms(factor), 0.0)


def squared_row_norms(factor: FloatArray) -> FloatArray:
    """‖Fᵢ‖² of every row, (n, r) → (n,)."""
    norms: FloatArray = np.einsum("ij,ij->i", factor, factor)
    return norms


def gram_of_factor(factor: FloatArray) -> FloatArray:
    """F·Fᵀ with 1 on the diagonal, clipped to [−1, 1] and exactly symmetric, (n, r) → (n, n)."""
    gram: FloatArray = factor @ factor.T
    np.clip(gram, -1.0, 1.0, out=gram)
    # A product F·Fᵀ is exactly symmetric only where BLAS computes it by `syrk`.
    mirror_upper(gram)
    np.fill_diagonal(gram, 1.0)
    return gram


def mirror_upper(matrix: FloatArray) -> None:
    """Copy the upper triangle onto the lower one, (n, n), in place."""
    for rows in panels(matrix.shape[0]):
        block = np.triu(matrix[rows, rows])
        matrix[rows, rows] = block + np.triu(block, 1).T
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T
