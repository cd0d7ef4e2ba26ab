"""Telling how far a blockwise projection is: iteration, residual, products, bytes, time left.

Solvers tell of their iterations, the first of which may take dozens of products and, on a large
matrix, hours. So a report follows each product as well. Until the residual shows a pace, the time
left is that of the products that are typically still to come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.progress import Reporter
from pipeline.project.blockwise import FinishedIteration


class SolverReporter:
    """Reports what a blockwise projection tells.

    Parameters
    ----------
    reporter : where to
    method : of the projection
    typical : products that it typically takes
    clock : seconds
    """

    def __init__(
        self,
        reporter: Reporter,
        method: str,
        typical: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter, self._method, self._typical, self._clock = reporter, method, typical, clock
        self._started = clock()
        self._iteration = 0
        self._residual: float | None = None
        self._products = self._in_this_attempt = 0
        self._ends: float | None = None

    def iterated(self, finished: FinishedIteration) -> None:
        """An iteration is finished."""
        self._iteration, self._residual = finished.step.number, finished.step.residual
        self._products = finished.step.products
        left = finished.seconds_left
        self._ends = None if left is None else self._clock() + left
        self._report(finished.bytes_read)

    def multiplied(self, bytes_read: int) -> None:
        """A product is finished; ``bytes_read`` of noisy blocks by all of this attempt."""
        self._products += 1
        self._in_this_attempt += 1
        self._report(bytes_read)

    def _report(self, bytes_read: int) -> None:
        self._reporter.advance(
            self._iteration,
            method=self._method,
            residual=self._residual,
            products=self._products,
            bytes_read=bytes_read,
            seconds_left=self._seconds_left(),
        )

    def _seconds_left(self) -> float | None:
        now = self._clock()
        if self._ends is not None:
            return max(self._ends - now, 0.0)
        to_come = self._typical - self._products
        if to_come <= 0 or self._in_this_attempt == 0:
            return None
        return (now - self._started) / self._in_this_attempt * to_come
