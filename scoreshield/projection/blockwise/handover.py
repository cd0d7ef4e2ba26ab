"""Where a solver of another kind hands over to the exact projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scoreshield.projection.blockwise.nearest import NearestState, nearest_blockwise
from scoreshield.projection.blockwise.panels import P, PanelAlgebra, PanelOperator
from scoreshield.projection.request import report
from scoreshield.projection.result import Iteration, continued
from scoreshield.projection.solution import Solution


def nearest_after(
    before: tuple[Iteration, ...],
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    *,
    progress: Callable[[Iteration], None] | None,
    checkpoint: Callable[[Any], None] | None,
    state: Callable[[NearestState[P]], Any],
    **settings: Any,
) -> Solution[P]:
    """Exact projection by a solver that has made other steps before, and that counts on.

    Parameters
    ----------
    before : those steps
    operator, algebra, settings : as for :func:`nearest_blockwise`
    progress : called after each step, as numbered from the first one of ``before``
    checkpoint : called after each step with ``state`` of the exact projection's own
    """

    def reported(step: Iteration) -> None:
        report(progress, continued(before, [step]))

    def checked(exact: NearestState[P]) -> None:
        if checkpoint is not None:
            checkpoint(state(exact))

    exact = nearest_blockwise(operator, algebra, progress=reported, checkpoint=checked, **settings)
    return replace(exact, history=continued(before, exact.history))
