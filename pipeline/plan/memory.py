"""What a panel of records costs in memory, dense or sparse: sizes in, bytes out.

A dense panel is as large as its shape says. A sparse one is as large as its entries, which are
unevenly spread: a plan counts with the panel that has the most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield.noise.sampler import TILE

FLOAT32_BYTES, FLOAT64_BYTES = 4, 8
INT32, INT64 = 4, 8
_ENTRY = 2 * INT32
"""A column and an integer."""
_MATRIX_ENTRY = FLOAT64_BYTES + INT32
"""An entry of a SciPy matrix, whose columns are those of the panel until it is transposed."""
_CHECKED_ENTRY = 2 * INT64 + 2 * FLOAT64_BYTES + 4
"""An entry's row, integer and square in float64, and what is marked of it (measured)."""
_DECODED_CHUNKS = 48 * 2**20
"""Chunks of entries while Zarr decodes them, with their bytes before and after (measured)."""

_KEPT_BUFFERS = 32 * 2**20
"""What the allocator keeps of those chunks while products are computed (measured)."""


class PanelMemory(Protocol):
    """Bytes that panels of one gallery take while a block is made of them."""

    def held(self, rows: int) -> int:
        """Of one panel of ``rows`` records as it is held."""

    def reading(self, rows: int) -> int:
        """Beside it while it is read and checked."""

    def computing(self, rows: int) -> int:
        """Beside two of them, block and tile while their products are computed."""

    def scoring(self, queries: int, records: int) -> int:
        """Beside a panel of records, block and tile while queries are scored against it."""


@dataclass(frozen=True)
class DensePanels:
    """Panels of embeddings of d features."""

    d: int

    def held(self, rows: int) -> int:
        """The rows in float32."""
        return rows * self.d * FLOAT32_BYTES

    def reading(self, rows: int) -> int:
        """Chunks as bytes, and as bytes whose checksum was taken off."""
        return 2 * rows * self.d * FLOAT32_BYTES

    def computing(self, rows: int) -> int:
        """Integers in float64: a tile's left rows, its right rows, and a copy BLAS packs."""
        return 3 * min(rows, TILE) * self.d * FLOAT64_BYTES

    def scoring(self, queries: int, records: int) -> int:
        """Integers in float64: the queries, a tile's records, and a copy BLAS packs."""
        return (queries + 2 * min(records, TILE)) * self.d * FLOAT64_BYTES


@dataclass(frozen=True, eq=False)
class SparsePanels:
    """Panels of interactions with d features.

    Attributes
    ----------
    pointers : (n + 1,) where each record's entries start.
    """

    d: int
    pointers: NDArray[np.int64]

    def largest(self, rows: int) -> int:
        """Most entries of any panel of ``rows`` records."""
        bounds = self.pointers[[*range(0, len(self.pointers) - 1, rows), -1]]
        return int(np.diff(bounds).max())

    def held(self, rows: int) -> int:
        """The entries."""
        return self.largest(rows) * _ENTRY

    def reading(self, rows: int) -> int:
        """What checking the entries takes, and chunks that are decoded."""
        return self.largest(rows) * _CHECKED_ENTRY + _DECODED_CHUNKS

    def computing(self, rows: int) -> int:
        """Both panels as matrices, the right one transposed too, and a strip of products.

        The strip is a tile high: sparse at first, then written out.
        """
        entries = self.largest(rows) * (2 * FLOAT64_BYTES + _MATRIX_ENTRY) + self.d * INT32
        strip = min(rows, TILE) * rows * (_MATRIX_ENTRY + FLOAT64_BYTES)
        return entries + strip + _KEPT_BUFFERS

    def scoring(self, queries: int, records: int) -> int:
        """The panel as a matrix, and the queries and their scores twice over in float64."""
        scores = 2 * queries * (records + self.d) * FLOAT64_BYTES
        return self.largest(records) * FLOAT64_BYTES + scores
