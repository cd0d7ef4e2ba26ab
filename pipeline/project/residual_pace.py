"""How long an iteration will still take, from how fast its residual has fallen so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

_RECENT = 6
"""Steps from which the pace is taken; what came long before tells little."""


class ResidualPace:
    """Times the steps of an iteration that stops at a tolerance.

    Parameters
    ----------
    tolerance : of the residual
    clock : seconds
    """

    def __init__(self, tolerance: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tolerance, self._clock = tolerance, clock
        self._steps: list[tuple[float, float]] = []

    def seconds_left(self, residual: float) -> float | None:
        """Seconds until the tolerance at the recent rate; None where that can't be told.

        The residual of every step is to be handed in, once.
        """
        if residual <= self._tolerance:
            return 0.0
        self._steps.append((self._clock(), math.log(residual)))
        times, logarithms = np.array(self._steps[-_RECENT:]).T
        if len(times) < 3 or times[-1] <= times[0]:
            return None
        slope = float(np.polyfit(times - times[0], logarithms, 1)[0])
        if slope >= 0.0:
            return None
        return (math.log(self._tolerance) - math.log(residual)) / slope
