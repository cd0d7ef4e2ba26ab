"""How far a result is from feasible and from the exact projection, bounded without trust.

The exact projection X* of G solves min f(X) = ½‖X − G‖² over the elliptope. Its dual is
max θ(y) = 1ᵀy − ½‖P₊(A)‖² + ½‖G‖² with A = G + Diag(y) (Malick 2004; Qi & Sun 2006). f is
1-strongly convex, so for every feasible X̃ and every y

    ½‖X̃ − X*‖² ≤ f(X̃) − f(X*) ≤ f(X̃) − θ(y).

Formed as written the difference cancels at the size ½‖G‖². With diag X̃ = 1 it equals

    f(X̃) − θ(y) = ½‖X̃ − P₊(A)‖² + ⟨X̃, P₊(−A)⟩,

two terms that are never negative and are computed here one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg

from scoreshield.errors import ParameterError
from scoreshield.projection.dense.eigen import Spectrum, full_spectrum
from scoreshield.projection.operator import FloatArray, panels


class Shaped(Protocol):
    """A factor (n, r), wherever it is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        ...


@dataclass(frozen=True)
class Certificate:
    """Bounds on a projection X̃; None where no dual point is known.

    Attributes
    ----------
    smallest_eigenvalue_bound : lower bound of the smallest eigenvalue of X̃, rounding included
    diagonal_residual : rms of diag − 1 of the PSD iterate, before the rows were scaled
    relative_gap : (f(X̃) − θ(y)) / (1 + |f(X̃)| + |θ(y)|)
    distance_bound : upper bound √(2(f(X̃) − θ(y))) of ‖X̃ − X*‖_F
    dual_smallest_eigenvalue : smallest eigenvalue of X̃ − G − Diag(y), at least 0 (up to rounding)
        for the exact projection and its dual point; in a blockwise form the smallest Ritz value, an
        upper bound of it, and gap and distance bound are then as good as that estimate
    """

    smallest_eigenvalue_bound: float
    diagonal_residual: float
    relative_gap: float | None = None
    distance_bound: float | None = None
    dual_smallest_eigenvalue: float | None = None


def feasibility_certificate(factor: FloatArray, diagonal_residual: float) -> Certificate:
    """Certificate of a result for which no dual point is known.

    Parameters
    ----------
    factor : F, (n, r), rows of norm at most 1
    diagonal_residual : rms of diag − 1 of the PSD iterate, from the solver's last step
    """
    diagonal = 1.0 - np.einsum("ij,ij->i", factor, factor)
    return Certificate(smallest_eigenvalue_bound(factor, diagonal), diagonal_residual)


def certify(
    factor: FloatArray,
    diagonal: FloatArray,
    noisy: FloatArray,
    dual: FloatArray,
    *,
    diagonal_residual: float,
    spectrum: Spectrum | None = None,
) -> Certificate:
    """Certificate of X̃ = F·Fᵀ + Diag(d) as a projection of G, at a dual point.

    Parameters
    ----------
    factor : F, (n, r)
    diagonal : d, (n,), non-negative, ‖Fᵢ‖² + dᵢ = 1
    noisy : G, (n, n), symmetric with unit diagonal
    dual : y, (n,), any numbers; the bound is the tighter the closer they are to the dual solution
    diagonal_residual : rms of diag − 1 of the PSD iterate, from the solver's last step
    spectrum : full spectrum of G + Diag(y) where it is at hand; computed otherwise

    Raises
    ------
    ParameterError
        When the shapes disagree.
    """
    n = factor.shape[0]
    if noisy.shape != (n, n) or dual.shape != (n,) or diagonal.shape != (n,):
        raise ParameterError(
            f"shapes disagree: factor {factor.shape}, diagonal {diagonal.shape}, noisy matrix "
            f"{noisy.shape}, dual {dual.shape}; expected (n, r), (n,), (n, n), (n,)"
        )
    shifted = add_to_diagonal(noisy, dual)
    if spectrum is None:
        spectrum = full_spectrum(shifted)
    gap = duality_gap(factor, diagonal, spectrum)
    primal = 0.5 * _squared_distance(factor, diagonal, noisy)
    return Certificate(
        smallest_eigenvalue_bound=smallest_eigenvalue_bound(factor, diagonal),
        diagonal_residual=diagonal_residual,
        relative_gap=gap / (1.0 + abs(primal) + abs(primal - gap)),
        distance_bound=float(np.sqrt(2.0 * gap)),
        dual_smallest_eigenvalue=_smallest_dual_eigenvalue(factor, diagonal, shifted),
    )


def duality_gap(factor: FloatArray, diagonal: FloatArray, spectrum: Spectrum) -> float:
    """f(X̃) − θ(y) ≥ 0 without cancellation.

    Parameters
    ----------
    factor, diagonal : F, (n, r), and d, (n,), of X̃ = F·Fᵀ + Diag(d)
    spectrum : full spectrum of A = G + Diag(y)
    """
    positive = spectrum.vectors[:, spectrum.values > 0.0] * np.sqrt(
        spectrum.values[spectrum.values > 0.0]
    )
    squared = math.fsum(
        _squared_difference(factor, diagonal, positive, rows) for rows in panels(factor.shape[0])
    )
    negative = spectrum.negative_factor()
    # ⟨F·Fᵀ + Diag(d), N·Nᵀ⟩ as a sum of squares.
    inner = float(np.sum((negative.T @ factor) ** 2))
    inner += float(diagonal @ np.einsum("ij,ij->i", negative, negative))
    return 0.5 * squared + inner


def smallest_eigenvalue_bound(factor: Shaped, diagonal: FloatArray) -> float:
    """Lower bound of the smallest eigenvalue of the float64 matrix that ``gram()`` returns.

    F·Fᵀ is PSD, so min d is a bound in exact arithmetic. Each entry of the computed product is off
    by at most (r + 2) u ‖Fᵢ‖‖Fⱼ‖ ≤ (r + 2) u (Higham 2002, section 3.5), and a symmetric n × n
    error with entries below e has no eigenvalue above n·e. ε = 2u leaves a factor of 2 to spare.
    """
    n, r = factor.shape
    rounding = float(n * (r + 2) * np.finfo(np.float64).eps)
    return float(diagonal.min()) - rounding


def add_to_diagonal(matrix: FloatArray, diagonal: FloatArray) -> FloatArray:
    """Copy of the matrix, (n, n), with a vector, (n,), added to its diagonal."""
    shifted = matrix.copy()
    shifted[np.diag_indices_from(shifted)] += diagonal
    return shifted


def _panel(factor: FloatArray, diagonal: FloatArray, rows: slice) -> FloatArray:
    # Rows of F·Fᵀ + Diag(d).
    panel: FloatArray = factor[rows] @ factor.T
    panel[np.arange(panel.shape[0]), np.arange(rows.start, rows.stop)] += diagonal[rows]
    return panel


def _squared_difference(
    factor: FloatArray, diagonal: FloatArray, other: FloatArray, rows: slice
) -> float:
    difference = _panel(factor, diagonal, rows) - other[rows] @ other.T
    return float(np.sum(difference**2))


def _squared_distance(factor: FloatArray, diagonal: FloatArray, noisy: FloatArray) -> float:
    return math.fsum(
        float(np.sum((_panel(factor, diagonal, rows) - noisy[rows]) ** 2))
        for rows in panels(factor.shape[0])
    )


def _smallest_dual_eigenvalue(
    factor: FloatArray, diagonal: FloatArray, shifted: FloatArray
) -> float:
    # Overwrites the shifted matrix A with X̃ − A, its last use.
    for rows in panels(factor.shape[0]):
        shifted[rows] = _panel(factor, diagonal, rows) - shifted[rows]
    smallest = scipy.linalg.eigvalsh(
        shifted.T, subset_by_index=(0, 0), overwrite_a=True, check_finite=False
    )
    return float(smallest[0])
