"""The paper's averaged alternating projection onto {PSD} ∩ {unit-diagonal box}.

    X ← (1 − α) X + α R_ω(P_psd(X)),   R_ω(Z) = Z + ω (P_box(Z) − Z)

P_psd clips the eigenvalues at 0, P_box clips the entries to [−1, 1] and sets the diagonal to 1. The
paper's solver is α = ½, ω = 1 and starts at the noisy matrix G. Over-relaxation, ω in (0, 2),
keeps convergence: the relaxed projection is averaged, hence so is the composition (Bauschke &
Combettes 2017, chapter 4). The sets are boundedly linearly regular, because a positive definite
matrix with unit diagonal lies inside both, so the residual shrinks R-linearly.

Where the iteration ends depends on α, ω and the start; only feasibility is guaranteed, not
nearness. All three are therefore among the result's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.certificate import feasibility_certificate
from scoreshield.projection.conjugate_gradient import root_mean_square
from scoreshield.projection.dense.eigen import (
    Spectrum,
    full_spectrum,
    positive_part_of,
    refuse_oversized,
    top_eigenpairs,
    uniform_dual_shift,
)
from scoreshield.projection.operator import FloatArray, SymmetricOperator, materialise, panels
from scoreshield.projection.request import report, require_tolerance
from scoreshield.projection.result import (
    Iteration,
    Plain,
    Projection,
    from_factor,
    rows_within_unit_ball,
)

Start = Literal["input", "dual_shift"]


def averaged_alternating_projection(
    operator: SymmetricOperator,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    rank: int | None = None,
    weight: float = 0.5,
    relaxation: float = 1.0,
    start: Start = "input",
    progress: Callable[[Iteration], None] | None = None,
) -> Projection:
    """A feasible matrix near G by averaged alternating projection.

    Parameters
    ----------
    operator : G; its diagonal is taken as 1
    tolerance : stop at this rms diagonal residual of the PSD iterate Z = P_psd(X). A PSD matrix
        with unit diagonal lies in the box, so the residual vanishes exactly at feasibility.
    max_iterations : most PSD steps, one eigendecomposition each
    rank : keep only this many of the largest eigenpairs in every PSD step; None keeps all the
        positive ones
    weight : α in (0, 1]
    relaxation : ω in (0, 2)
    start : ``"input"`` for G itself, ``"dual_shift"`` for G + c·I with the uniform dual shift c,
        which ends nearer to the exact projection
    progress : called after each step

    Returns
    -------
    Projection
        The last Z, its factor's rows scaled to norm at most 1 and the diagonal completed.
        ``converged`` is False when the steps ran out. ``linear_rate`` holds the estimated rate.

    Raises
    ------
    ParameterError
        For a parameter outside its domain, or n beyond the dense eigensolver.
    """
    require_tolerance(tolerance, max_iterations)
    _require_parameters(rank, weight, relaxation, start)
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    iterate, spectrum = _start(noisy, rank, start)
    history = [_iteration(1, spectrum)]
    report(progress, history)
    while history[-1].residual > tolerance and len(history) < max_iterations:
        averaged_step(iterate, _psd_step(iterate, spectrum, rank), weight, relaxation)
        del spectrum
        spectrum = _spectrum(iterate, rank)
        history.append(_iteration(len(history) + 1, spectrum))
        report(progress, history)
    parameters: dict[str, Plain] = {
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "weight": weight,
        "relaxation": relaxation,
        "start": start,
    }
    return _result(spectrum, history, parameters, rank, products, tolerance)


def averaged_step(iterate: FloatArray, psd: FloatArray, weight: float, relaxation: float) -> None:
    """X ← (1 − α) X + α R_ω(Z) in place, for X and Z of shape (n, n)."""
    for rows in panels(iterate.shape[0]):
        block = relaxed_box(psd[rows], relaxation, rows.start)
        iterate[rows] += weight * (block - iterate[rows])


def relaxed_box(block: FloatArray, relaxation: float, first_column: int | None) -> FloatArray:
    """R_ω(Z) = Z + ω (P_box(Z) − Z) on a block of Z.

    Parameters
    ----------
    block : (b, c), rows and columns of Z
    relaxation : ω
    first_column : column of the block in which the diagonal of Z enters it at the block's first
        row; None for a block without diagonal entries
    """
    boxed = np.clip(block, -1.0, 1.0)
    if first_column is not None:
        row = np.arange(block.shape[0])
        boxed[row, first_column + row] = 1.0
    if relaxation == 1.0:
        return boxed
    return block + relaxation * (boxed - block)


def estimated_linear_rate(residuals: Sequence[float]) -> float | None:
    """Factor by which the residual shrinks a step, from the second half of a history.

    The least-squares slope of the logarithm; None below four positive residuals.
    """
    tail = [r for r in residuals[len(residuals) // 2 :] if r > 0.0]
    if len(residuals) < 4 or len(tail) < 2:
        return None
    slope = np.polynomial.Polynomial.fit(range(len(tail)), np.log(tail), 1).convert().coef[1]
    return math.exp(float(slope))


def _spectrum(iterate: FloatArray, rank: int | None) -> Spectrum:
    return full_spectrum(iterate) if rank is None else top_eigenpairs(iterate, rank)


def _psd_step(iterate: FloatArray, spectrum: Spectrum, rank: int | None) -> FloatArray:
    if rank is None:
        return positive_part_of(iterate, spectrum)
    factor = spectrum.positive_factor()
    truncated: FloatArray = factor @ factor.T
    return truncated


def _iteration(number: int, spectrum: Spectrum) -> Iteration:
    return Iteration(
        number=number,
        residual=root_mean_square(spectrum.positive_diagonal() - 1.0),
        rank=spectrum.rank,
        eigendecompositions=number,
    )


def _start(noisy: FloatArray, rank: int | None, start: Start) -> tuple[FloatArray, Spectrum]:
    """The first iterate, and its spectrum."""
    iterate, spectrum = noisy.copy(), _spectrum(noisy, rank)
    if start == "dual_shift":
        shift = uniform_dual_shift(spectrum.values, float(len(noisy)))
        iterate[np.diag_indices_from(iterate)] += shift
        spectrum = spectrum.shifted(shift)
    return iterate, spectrum


def _result(
    spectrum: Spectrum,
    history: list[Iteration],
    parameters: dict[str, Plain],
    rank: int | None,
    products: int,
    tolerance: float,
) -> Projection:
    residuals = [step.residual for step in history]
    factor = rows_within_unit_ball(spectrum.positive_factor())
    return from_factor(
        factor,
        method="aap",
        parameters={
            **parameters,
            "psd_step": "full" if rank is None else "truncated",
            "rank_limit": rank,
            "residual": "rms of diag(P_psd(X)) - 1",
        },
        certificate=feasibility_certificate(factor, residuals[-1]),
        products=products,
        history=history,
        converged=residuals[-1] <= tolerance,
        linear_rate=estimated_linear_rate(residuals),
    )


def _require_parameters(rank: int | None, weight: float, relaxation: float, start: str) -> None:
    if rank is not None and rank < 1:
        raise ParameterError(f"rank is {rank!r}, expected at least 1, or None for the full step")
    if not 0.0 < weight <= 1.0:
        raise ParameterError(f"weight is {weight!r}, expected 0 < weight ≤ 1; the paper's is 0.5")
    if not 0.0 < relaxation < 2.0:
        raise ParameterError(
            f"relaxation is {relaxation!r}, expected 0 < relaxation < 2; the paper's is 1"
        )
    require_start(start)


def require_start(start: str) -> None:
    """Raise ParameterError for a start that there is none of."""
    if start not in get_args(Start):
        raise ParameterError(f"start is {start!r}, expected one of {', '.join(get_args(Start))}")
