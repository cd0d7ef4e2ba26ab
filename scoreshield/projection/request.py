"""What a caller asks of a projection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scoreshield.errors import ParameterError
from scoreshield.projection.result import Iteration


@dataclass(frozen=True)
class ProjectionRequest:
    """What a caller asks of a projection.

    Attributes
    ----------
    sigma : standard deviation σ of the off-diagonal noise, where known
    tolerance : at which residual to stop; each method states which residual
    max_iterations : most steps
    rank : number of eigenpairs of a truncated PSD step, or None for the full spectrum
    progress : called after each step
    """

    sigma: float | None
    tolerance: float
    max_iterations: int
    rank: int | None
    progress: Callable[[Iteration], None] | None = None


def require_tolerance(tolerance: float, max_iterations: int) -> None:
    """Raise ParameterError unless 0 < tolerance < ∞ and max_iterations ≥ 1."""
    if not (math.isfinite(tolerance) and tolerance > 0.0):
        raise ParameterError(
            f"tolerance is {tolerance!r}, expected a finite number above 0; 1e-4 is usual"
        )
    if max_iterations < 1:
        raise ParameterError(f"max_iterations is {max_iterations!r}, expected at least 1")


def report(progress: Callable[[Iteration], None] | None, history: Sequence[Iteration]) -> None:
    """Hand the last step to the caller's progress function, where there is one."""
    if progress is not None:
        progress(history[-1])
