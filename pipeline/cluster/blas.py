"""One BLAS thread inside a task: parallelism is that of the tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS runs in the calling thread alone."""
    limits: AbstractContextManager[Any] = _thread_pools().limit(limits=1)
    return limits


@lru_cache(maxsize=1)
def _thread_pools() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes longer than a small task."""
    return ThreadpoolController()
