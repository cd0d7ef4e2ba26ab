"""What a blockwise solver is given: the matrix, the home of its panels, and what is asked.

The same solver runs with its panels in memory and on a cluster; what differs between the two is in
the problem that it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy.typing as npt

from scoreshield.projection.blockwise.box_correction import BoxCorrection
from scoreshield.projection.blockwise.panels import ArrayPanels, P, PanelAlgebra, PanelOperator
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Iteration

Choice = dict[str, Any]
"""A decision as plain values, so that it can be kept as JSON."""


@dataclass(frozen=True)
class BlockwiseProblem(Generic[P]):
    """One projection by products.

    Attributes
    ----------
    operator : G, with unit diagonal
    algebra : home of the panels
    request : what is asked; its progress function is told through ``watched``
    box_correction : F → the operator P_box(F·Fᵀ) − F·Fᵀ
    watched : tolerance at which a solver stops → what to call with each of its steps
    decided : makes a decision that the rest depends on, or returns it where it was made before
    checkpoint : called with the solver's state after each step
    reached : state that an earlier attempt has left, whichever solver it is of
    """

    operator: PanelOperator[P]
    algebra: PanelAlgebra[P]
    request: ProjectionRequest
    box_correction: Callable[[P], PanelOperator[P]]
    watched: Callable[[float], Callable[[Iteration], None] | None]
    decided: Callable[[Callable[[], Choice]], Mapping[str, Any]]
    checkpoint: Callable[[Any], None] | None = None
    reached: Any = None

    def iteration(self, tolerance: float, states: tuple[type, ...]) -> dict[str, Any]:
        """What every iterative solver takes, as keyword arguments.

        Parameters
        ----------
        tolerance : at which the solver stops
        states : of the solver; a state of another one is not gone on from
        """
        return {
            "tolerance": tolerance,
            "max_iterations": self.request.max_iterations,
            "progress": self.watched(tolerance),
            "checkpoint": self.checkpoint,
            "resume_from": self.reached if isinstance(self.reached, states) else None,
        }


def problem_in_memory(
    operator: SymmetricOperator, request: ProjectionRequest
) -> BlockwiseProblem[npt.NDArray[Any]]:
    """The problem with its panels as float64 arrays, solved in one go."""
    return BlockwiseProblem(
        operator=operator,
        algebra=ArrayPanels(operator.n),
        request=request,
        box_correction=BoxCorrection,
        watched=lambda _: request.progress,
        decided=lambda decide: decide(),
    )
