"""How products of a symmetric matrix with panels, and steps on panels, are cut into tasks.

The triangle of blocks is cut into square groups. A share is one group: it touches two spans of
rows, whatever its number of blocks, so that little is read and summed besides the blocks. Shares
have their workers from one product to the next, because that is where their blocks are cached. The
rows of a panel are cut into ranges, one task each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNITS_PER_THREAD = 8
"""Diagonal groups of work for each thread; others are twice as much."""

FEWEST_ROWS = 4096
"""Rows of a range below which a task costs more than what it does."""

RANGES_PER_THREAD = 3
"""Row ranges for each thread of the cluster: enough to even out, few enough to be worth a task."""

CHUNK_ROWS = 2048
"""Rows that a task handles at once; memory depends on it, results do not."""


@dataclass(frozen=True)
class Share:
    """Blocks (i, j), i ≤ j, with i in ``rows`` and j in ``columns``; both are ranges of blocks."""

    index: int
    rows: range
    columns: range

    @property
    def diagonal(self) -> bool:
        """Whether the group lies on the diagonal, where one of two mirrored blocks is stored."""
        return self.rows == self.columns

    @property
    def work(self) -> int:
        """Block products B·W and Bᵀ·W."""
        products = len(self.rows) * len(self.columns)
        return products if self.diagonal else 2 * products


def cut_shares(per_side: int, threads: int) -> tuple[Share, ...]:
    """Shares of a triangle with ``per_side`` blocks a side, for that many threads."""
    groups = min(per_side, math.ceil(math.sqrt(UNITS_PER_THREAD * threads)))
    bounds = [per_side * group // groups for group in range(groups + 1)]
    spans = [range(low, high) for low, high in itertools.pairwise(bounds)]
    pairs = [(rows, columns) for last, columns in enumerate(spans) for rows in spans[: last + 1]]
    return tuple(Share(index, rows, columns) for index, (rows, columns) in enumerate(pairs))


class ShareOwners:
    """Which worker each share belongs to, for as long as that worker lives."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = sorted(shares, key=lambda share: -share.work)
        self._of: dict[int, str] = {}

    def among(self, threads: Mapping[str, int]) -> dict[int, str]:
        """Share index → worker address, for workers with their numbers of threads.

        Shares of workers that are gone go where there is least to do, the largest first (Graham,
        SIAM J. Appl. Math. 17 (1969) 416–429).
        """
        load = dict.fromkeys(sorted(threads), 0.0)
        kept = {share: worker for share, worker in self._of.items() if worker in threads}
        for share in self._shares:
            if share.index in kept:
                load[kept[share.index]] += share.work / threads[kept[share.index]]
        for share in self._shares:
            if share.index not in kept:
                worker = min(load, key=lambda name: load[name] + share.work / threads[name])
                kept[share.index] = worker
                load[worker] += share.work / threads[worker]
        self._of = kept
        return kept


@dataclass(frozen=True)
class RowRanges:
    """The rows 0 to n, cut into ranges of ``rows``, the last one of what is left."""

    n: int
    rows: int

    @property
    def count(self) -> int:
        """Number of ranges."""
        return -(-self.n // self.rows)

    def span(self, index: int) -> slice:
        """Rows of one range."""
        return slice(index * self.rows, min((index + 1) * self.rows, self.n))


def row_ranges(n: int, threads: int, fewest: int = FEWEST_ROWS) -> RowRanges:
    """Ranges for a cluster of that many threads, each of at least ``fewest`` rows."""
    return RowRanges(n, min(n, max(fewest, -(-n // (RANGES_PER_THREAD * threads)))))
