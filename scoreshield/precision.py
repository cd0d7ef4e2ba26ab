"""Multiple precision for one thread at a time.

mpmath keeps its working precision and its cached constants in globals: two threads that use it at
once change each other's precision in the middle of a computation. Whatever a release decides in
multiple precision therefore runs under one lock, in a context that no other code holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()


@contextmanager
def working_precision(bits: int) -> Iterator[Any]:
    """An mpmath context of ``bits`` binary digits, held by this thread until the block ends."""
    with _lock:
        context = _private_context()
        context.prec = bits
        yield context


@cache
def _private_context() -> Any:
    import mpmath

    return mpmath.MPContext()
