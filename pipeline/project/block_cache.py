"""Blocks that a worker keeps in memory from one product to the next, up to a number of bytes.

Products visit blocks in the same order each time, which is the worst case of a cache that drops
what was used longest ago: it would never hit. So what came first stays, and what does not fit is
read each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pipeline.storage.place import Place

Array = NDArray[Any]


@dataclass
class BlockCache:
    """Blocks of one store by their index."""

    _store: Place | None = None
    _blocks: dict[int, Array] = field(default_factory=dict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def clear(self) -> None:
        """Drop everything: a worker may outlive the run that filled it."""
        with self._lock:
            self._store, self._blocks, self._bytes = None, {}, 0

    def get(
        self, store: Place, index: int, limit: int, read: Callable[[], Array]
    ) -> tuple[Array, int]:
        """A block and the bytes that had to be read for it, 0 where it was held.

        Parameters
        ----------
        store : the block store; blocks of another one are dropped
        limit : most bytes to hold
        read : reads the block
        """
        with self._lock:
            if self._store != store:
                self._store, self._blocks, self._bytes = store, {}, 0
            held = self._blocks.get(index)
        if held is not None:
            return held, 0
        block = read()
        size = block.nbytes if block.base is None else block.base.nbytes
        with self._lock:
            fits = self._store == store and self._bytes + size <= limit
            if fits and index not in self._blocks:
                self._blocks[index] = block
                self._bytes += size
        return block, block.nbytes


of_this_worker = BlockCache()
"""The cache that all tasks of a process share."""
