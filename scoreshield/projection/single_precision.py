"""``nearest`` by products in memory: first steps in single precision, the last ones in double.

A step of the dual Newton method gains a factor of 2 to 20 wherever it starts, so what the first
steps round away the next one finds again. In single precision their products and their work on
panels take half the time. Dual vector and subspace then go over. All that is read of them
afterwards, the certificate with it, is in double precision and owes nothing to how they were found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scoreshield.projection.method import report, require_tolerance
from scoreshield.projection.nearest_blockwise import DualNewton, NearestState, nearest_blockwise
from scoreshield.projection.operator import DenseOperator, FloatArray, SymmetricOperator
from scoreshield.projection.panels import ArrayPanels
from scoreshield.projection.result import Iteration
from scoreshield.projection.solution import Solution

HANDOVER_RESIDUAL = 1e-5
"""Rms diagonal residual at which double precision takes over at the latest: ten times what
single precision reaches at moderate noise (measured)."""

MOST_IDLE_STEPS = 3
"""Steps in single precision without a smaller residual before double precision takes over."""


class SinglePrecision:
    """A symmetric array in single precision, known by its products.

    Parameters
    ----------
    array : (n, n), symmetric with unit diagonal; copied to float32
    """

    def __init__(self, array: npt.NDArray[np.floating[Any]]) -> None:
        self._array = array.astype(np.float32)

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return int(self._array.shape[0])

    def matmat(self, W: npt.NDArray[Any], /) -> npt.NDArray[Any]:
        """Product G·W, (n, k) → (n, k) float32."""
        product: npt.NDArray[Any] = self._array @ W
        return product


def nearest_in_memory(
    operator: SymmetricOperator,
    *,
    tolerance: float,
    max_iterations: int,
    progress: Callable[[Iteration], None] | None = None,
) -> Solution[npt.NDArray[Any]]:
    """Exact projection of a matrix in memory, as by :func:`nearest_blockwise`.

    An array is copied to single precision, which takes half as much memory again. Another operator
    offers no such copy, and all its steps are in double precision.

    Parameters
    ----------
    operator : G, with unit diagonal
    tolerance, max_iterations, progress : as for :func:`nearest_blockwise`

    Raises
    ------
    ParameterError
        For a tolerance that is not above 0, or no iterations.
    """
    require_tolerance(tolerance, max_iterations)
    algebra = ArrayPanels(operator.n)
    state: NearestState[npt.NDArray[Any]] | None = None
    if isinstance(operator, DenseOperator):
        first = _first_steps(operator.array, tolerance, max_iterations, progress)
        state = DualNewton(operator, algebra).taken_over(
            first, first.pairs.vectors.astype(np.float64)
        )
    solution = nearest_blockwise(
        operator,
        algebra,
        tolerance=tolerance,
        max_iterations=max_iterations,
        progress=progress,
        resume_from=state,
    )
    return replace(
        solution,
        parameters={
            **solution.parameters,
            "single_precision_iterations": 0 if state is None else len(state.history) - 1,
        },
    )


def _first_steps(
    array: FloatArray,
    tolerance: float,
    max_iterations: int,
    progress: Callable[[Iteration], None] | None,
) -> NearestState[npt.NDArray[Any]]:
    """Steps until double precision has to take over, or they run out."""
    solver = DualNewton(SinglePrecision(array), ArrayPanels(len(array), np.float32))
    state = solver.start(None)
    while _gains(state, tolerance) and len(state.history) < max_iterations:
        following = solver.step(state)
        if following is None:
            break
        # The last state is reported when it has been read in double precision.
        report(progress, state.history)
        state = following
    return state


def _gains(state: NearestState[npt.NDArray[Any]], tolerance: float) -> bool:
    """Whether the residual is above what single precision rounds, and still falls."""
    residuals = [step.residual for step in state.history]
    largest = max(abs(float(state.pairs.values[0])), abs(state.pairs.lower))
    # Ten times the least residual that was measured at large noise.
    rounding = 0.1 * float(np.finfo(np.float32).eps) * largest
    idle = len(residuals) - 1 - int(np.argmin(residuals))
    enough = max(tolerance, HANDOVER_RESIDUAL, rounding)
    return residuals[-1] > enough and idle < MOST_IDLE_STEPS
