"""``nearest`` by products in memory: start and end in double precision, steps between in single.

What a step of the dual Newton method rounds away the next one finds again, so only the last ones
need all digits. In single precision products and linear combinations of panels take half the time.
The start is in double precision: without noise it is the answer already, and it says how far single
precision gets. So is everything from the handover on: the subspace is multiplied anew, and the
certificate is as independent of how it was found as it always is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scoreshield.projection.blockwise.nearest import DualNewton, NearestState, nearest_blockwise
from scoreshield.projection.blockwise.panels import ArrayPanels, PanelOperator
from scoreshield.projection.operator import DenseOperator, FloatArray
from scoreshield.projection.request import report, require_tolerance
from scoreshield.projection.result import Iteration
from scoreshield.projection.solution import Solution

HANDOVER_RESIDUAL = 1e-5
"""Rms diagonal residual at which double precision takes over at the latest: ten times what
single precision reaches at moderate noise (measured)."""

ROUNDED_RESIDUAL = 0.1
"""The same in units of the rounding of A's largest eigenvalue, for large noise. Single precision
gets to 0.001 to 0.01 of it (measured), but what it gains there double precision has to repeat."""

LARGEST_ROUNDING = 1e-2
"""Rounding of the largest eigenvalue of A, beside the unit diagonal that is asked for, above which
single precision is of no use."""

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
    operator: PanelOperator[npt.NDArray[Any]],
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
    solver = DualNewton(operator, algebra)
    state, steps = solver.start(None), 0
    if (
        isinstance(operator, DenseOperator)
        and not solver.spans_all(state)
        and _rounding(state) <= LARGEST_ROUNDING
        and _gains(state, tolerance, max_iterations)
    ):
        reached = _reached(operator.array, state, tolerance, max_iterations, progress)
        steps = len(reached.history) - len(state.history)
        state = solver.taken_over(reached, reached.pairs.vectors.astype(np.float64))
    solution = nearest_blockwise(
        operator,
        algebra,
        tolerance=tolerance,
        max_iterations=max_iterations,
        progress=progress,
        resume_from=state,
    )
    parameters = {**solution.parameters, "single_precision_iterations": steps}
    return replace(solution, parameters=parameters)


def _reached(
    array: FloatArray,
    start: NearestState[npt.NDArray[Any]],
    tolerance: float,
    max_iterations: int,
    progress: Callable[[Iteration], None] | None,
) -> NearestState[npt.NDArray[Any]]:
    """How far steps in single precision get from a start; it and all of them are reported."""
    solver = DualNewton(SinglePrecision(array), ArrayPanels(len(array), np.float32))
    pairs = replace(
        start.pairs,
        vectors=start.pairs.vectors.astype(np.float32),
        image=start.pairs.image.astype(np.float32),
    )
    state = solver.resumed(replace(start, pairs=pairs))
    report(progress, state.history)
    while _gains(state, tolerance, max_iterations):
        following = solver.step(state)
        if following is None:
            break
        state = following
        report(progress, state.history)
    return state


def _gains(state: NearestState[npt.NDArray[Any]], tolerance: float, max_iterations: int) -> bool:
    """Whether one more step in single precision is of use: the residual is above what is rounded
    and still falls, and an iteration is left for double precision."""
    residuals = [step.residual for step in state.history]
    enough = max(tolerance, HANDOVER_RESIDUAL, ROUNDED_RESIDUAL * _rounding(state))
    idle = len(residuals) - 1 - int(np.argmin(residuals))
    return residuals[-1] > enough and idle < MOST_IDLE_STEPS and len(residuals) < max_iterations - 1


def _rounding(state: NearestState[npt.NDArray[Any]]) -> float:
    """What single precision rounds off the largest eigenvalue of A."""
    largest = max(abs(float(state.pairs.values[0])), abs(state.pairs.lower))
    return float(np.finfo(np.float32).eps) * largest
