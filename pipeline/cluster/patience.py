"""How long a run waits for a sign of life from its workers before it takes them for hung.

A sign of life is a task that ends, or an iteration that a long task reports. A worker that has
stopped, or waits for storage that will never answer, gives none; a slow one gives some. So the
limit depends on the longest single step, and on neither the number of tasks nor their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pipeline.config.cluster import TASK_TIMEOUT


class Patience:
    """Seconds without a sign of life after which workers count as hung."""

    def __init__(self, seconds: float = TASK_TIMEOUT) -> None:
        self.seconds = seconds
        self._heard = time.monotonic()

    def hear(self, grace: float = 0.0) -> None:
        """A worker gave a sign of life, or is given ``grace`` seconds more to give one."""
        self._heard = time.monotonic() + grace

    @property
    def left(self) -> float:
        """Seconds until patience ends, at least 0."""
        return max(0.0, self._heard + self.seconds - time.monotonic())


_current: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Wait that long, and no longer, for every step within."""
    token = _current.set(Patience(seconds))
    try:
        yield
    finally:
        _current.reset(token)


def current_patience() -> Patience:
    """That of the run this is called in."""
    found = _current.get()
    return Patience() if found is None else found
