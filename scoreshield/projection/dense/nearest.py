"""The exact Frobenius projection onto the elliptope: the nearest correlation matrix.

The dual of min ½‖X − G‖² over {X PSD, diag X = 1} is unconstrained and convex in y ∈ ℝⁿ,

    min φ(y) = ½‖P₊(G + Diag(y))‖² − 1ᵀy,   ∇φ(y) = diag P₊(G + Diag(y)) − 1,

and X* = P₊(G + Diag(y*)). ∇φ is strongly semismooth, and every element of its generalised Jacobian
is positive definite at y*, so an inexact Newton method converges quadratically from near y* and,
with a line search, from anywhere. H. Qi and D. Sun, "A quadratically convergent Newton method for
computing the nearest correlation matrix", SIAM J. Matrix Anal. Appl. 28 (2006) 360–385; the
diagonal preconditioner follows R. Borsdorf and N. J. Higham, IMA J. Numer. Anal. 30 (2010) 94–107.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scoreshield.projection.certificate import add_to_diagonal, certify
from scoreshield.projection.conjugate_gradient import newton_direction, root_mean_square
from scoreshield.projection.dense.eigen import (
    Spectrum,
    full_spectrum,
    refuse_oversized,
    uniform_dual_shift,
)
from scoreshield.projection.operator import FloatArray, SymmetricOperator, materialise
from scoreshield.projection.request import report, require_tolerance
from scoreshield.projection.result import (
    Iteration,
    Projection,
    completed_diagonal,
    from_factor,
    rows_within_unit_ball,
    squared_row_norms,
)

LARGEST_INEXACTNESS = 0.02
"""Residual of a Newton system, relative to its right side, at which conjugate gradients may stop
far from the solution."""

CONJUGATE_GRADIENT_LIMIT = 300
LINE_SEARCH_LIMIT = 30
SUFFICIENT_DECREASE = 1e-4


@dataclass(frozen=True, eq=False)
class DualPoint:
    """A dual vector y with what is known there.

    Attributes
    ----------
    dual : y, (n,)
    spectrum : full spectrum of A = G + Diag(y)
    gradient : ∇φ(y) = diag P₊(A) − 1, (n,)
    value : φ(y)
    """

    dual: FloatArray
    spectrum: Spectrum
    gradient: FloatArray
    value: float

    @property
    def residual(self) -> float:
        """Rms diagonal residual of P₊(A)."""
        return root_mean_square(self.gradient)


class GeneralisedJacobian:
    """The element V (Ω ∘ (Vᵀ Diag(h) V)) Vᵀ of the generalised Jacobian, read off its diagonal.

    Ω is 1 where both eigenvalues are positive, 0 where none is, and λᵢ/(λᵢ − λⱼ) where only λᵢ is.
    Products work on the side with fewer eigenvalues, through h − diag V ((1 − Ω) ∘ …) Vᵀ where
    that is the non-positive one: 4 n² min(r, n − r) operations.

    Parameters
    ----------
    spectrum : full spectrum of A = G + Diag(y)
    """

    def __init__(self, spectrum: Spectrum) -> None:
        negative = spectrum.values.size - spectrum.positive
        self._complement = spectrum.positive > negative
        small = slice(0, negative) if self._complement else slice(negative, None)
        large = slice(negative, None) if self._complement else slice(0, negative)
        self._small = spectrum.vectors[:, small]
        self._large = spectrum.vectors[:, large]
        own = np.abs(spectrum.values[small])[:, None]
        self._weights = own / (own + np.abs(spectrum.values[large]))

    def product(self, h: FloatArray) -> FloatArray:
        """Product of the Jacobian with a vector, (n,) → (n,)."""
        scaled = (self._small * h[:, None]).T
        half = self._small @ (0.5 * (scaled @ self._small))
        result: FloatArray = np.einsum("ij,ij->i", half, self._small)
        cross = self._weights * (scaled @ self._large)
        result += np.einsum("ij,ij->i", self._small @ cross, self._large)
        result *= 2.0
        return h - result if self._complement else result

    def diagonal(self) -> FloatArray:
        """Diagonal of the Jacobian, (n,)."""
        squares = self._small**2
        result: FloatArray = squares.sum(axis=1) ** 2
        cross = squares @ self._weights
        result += 2.0 * np.einsum("ij,ij,ij->i", cross, self._large, self._large)
        return 1.0 - result if self._complement else result


def nearest_correlation(
    operator: SymmetricOperator,
    *,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
    progress: Callable[[Iteration], None] | None = None,
) -> Projection:
    """Exact projection of G onto the elliptope by the dual semismooth Newton method.

    Parameters
    ----------
    operator : G; its diagonal is taken as 1
    tolerance : stop at this rms diagonal residual of X = P₊(G + Diag(y))
    max_iterations : most dual points visited, the start included
    progress : called after each step

    Returns
    -------
    Projection
        With the duality gap in its certificate. ``converged`` is False when the steps ran out
        or rounding forbids further progress.

    Raises
    ------
    ParameterError
        For a tolerance that is not above 0, or n beyond the dense eigensolver.
    """
    require_tolerance(tolerance, max_iterations)
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    point = starting_point(noisy)
    history = [Iteration(1, point.residual, point.spectrum.rank, 1)]
    report(progress, history)
    while point.residual > tolerance and len(history) < max_iterations:
        following, evaluations = newton_step(noisy, point)
        if following is None:
            break
        point = following
        history.append(
            Iteration(
                len(history) + 1,
                point.residual,
                point.spectrum.rank,
                history[-1].eigendecompositions + evaluations,
            )
        )
        report(progress, history)
    return _result(noisy, point, history, products, tolerance, max_iterations)


def starting_point(noisy: FloatArray) -> DualPoint:
    """A uniform dual vector c·1; it shares the eigenvectors of G.

    The best such vector gives P₊ the trace n. Where the noise dominates that leaves so few positive
    eigenvalues, r(r + 1)/2 < n, that the Jacobian is nearly singular; then c is raised until
    2√n of them are positive, which saves most of the Newton steps (measured: 60 eigendecompositions
    become 15 at σ√n = 7000).
    """
    spectrum = full_spectrum(noisy)
    n = noisy.shape[0]
    shift = uniform_dual_shift(spectrum.values, float(n))
    index_from_top = min(math.ceil(2.0 * math.sqrt(n)), n) - 1
    shift = max(shift, -float(spectrum.values[n - 1 - index_from_top]))
    return _dual_point(np.full(n, shift), spectrum.shifted(shift))


def newton_step(noisy: FloatArray, point: DualPoint) -> tuple[DualPoint | None, int]:
    """One inexact Newton step with line search, and the eigendecompositions that it took.

    The point is None where no step along the Newton direction improves on the present one, which
    happens at the level of rounding only.
    """
    jacobian = GeneralisedJacobian(point.spectrum)
    direction = newton_direction(
        jacobian.product,
        jacobian.diagonal(),
        point.gradient,
        LARGEST_INEXACTNESS,
        CONJUGATE_GRADIENT_LIMIT,
    )
    return _line_search(noisy, point, direction)


def _dual_point(dual: FloatArray, spectrum: Spectrum) -> DualPoint:
    positive = spectrum.values[spectrum.values > 0.0]
    return DualPoint(
        dual=dual,
        spectrum=spectrum,
        gradient=spectrum.positive_diagonal() - 1.0,
        value=0.5 * float(positive @ positive) - float(dual.sum()),
    )


def _line_search(
    noisy: FloatArray, point: DualPoint, direction: FloatArray
) -> tuple[DualPoint | None, int]:
    slope = float(point.gradient @ direction)
    step = 1.0
    for trial in range(1, LINE_SEARCH_LIMIT + 1):
        dual = point.dual + step * direction
        candidate = _dual_point(dual, full_spectrum(add_to_diagonal(noisy, dual)))
        if _acceptable(point, candidate, step, slope, direction):
            return candidate, trial
        if trial > 1 and _indistinguishable(point, candidate):
            return None, trial
        # φ is convex: its slope along the direction tells where the secant vanishes.
        end_slope = float(candidate.gradient @ direction)
        secant = slope / (slope - end_slope) if end_slope > 0.0 else 0.5
        step *= min(max(secant, 0.05), 0.5)
    return None, LINE_SEARCH_LIMIT


def _acceptable(
    point: DualPoint, candidate: DualPoint, step: float, slope: float, direction: FloatArray
) -> bool:
    """Armijo's rule, or at the level of rounding the slope's own (Hager & Zhang 2005)."""
    if candidate.value <= point.value + SUFFICIENT_DECREASE * step * slope:
        # A difference below rounding would count noise as descent.
        return candidate.residual < point.residual or not _indistinguishable(point, candidate)
    return _indistinguishable(point, candidate) and candidate.residual < 0.9 * point.residual


def _indistinguishable(point: DualPoint, candidate: DualPoint) -> bool:
    # φ adds up n eigenvalues and n entries of y, each of them off by rounding at the size of A.
    size = point.dual.size * float(np.abs(point.spectrum.values).max())
    size += float(np.abs(point.dual).sum())
    return abs(candidate.value - point.value) <= 1e-14 * size


def _result(
    noisy: FloatArray,
    point: DualPoint,
    history: list[Iteration],
    products: int,
    tolerance: float,
    max_iterations: int,
) -> Projection:
    factor = point.spectrum.positive_factor()
    norms = np.sqrt(squared_row_norms(factor))
    # X̃ = D^-½ X D^-½ keeps the rank of X, which completing the diagonal alone would not.
    factor /= np.where(norms > 0.0, norms, 1.0)[:, None]
    factor = rows_within_unit_ball(factor)
    return from_factor(
        factor,
        method="nearest",
        parameters={
            "tolerance": tolerance,
            "max_iterations": max_iterations,
            "start": "uniform dual vector",
            "residual": "rms of diag(P_psd(G + Diag(y))) - 1",
        },
        certificate=certify(
            factor,
            completed_diagonal(factor),
            noisy,
            point.dual,
            diagonal_residual=point.residual,
            spectrum=point.spectrum,
        ),
        products=products,
        history=history,
        dual=point.dual,
        converged=point.residual <= tolerance,
    )
