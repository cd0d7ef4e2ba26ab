"""Exact inner products of two panels of fixed-point rows, tile by tile, however they are held."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import exact_products, to_integers
from scoreshield.arithmetic.sparse import SparseRows, dense_by_sparse_products, sparse_products

FixedRows = NDArray[np.float32] | SparseRows
"""Fixed-point rows, written out or sparse."""


class Products(Protocol):
    """The inner products of k left with l right rows, in units of 2^-48."""

    def tile(self, rows: slice, columns: slice, out: NDArray[np.float64]) -> None:
        """Write the products of some left and some right rows to ``out``.

        Tiles are asked for in order: those of the same rows from left to right, and where a row of
        tiles starts further right than the one before, so do all that follow.
        """


def products_of(left: FixedRows, right: FixedRows, widest: int) -> Products:
    """The products of two panels; public queries (dense, on the left) meet either kind.

    ``widest`` is the largest number of right rows that a tile asks for.
    """
    if isinstance(right, SparseRows):
        return _SparseProducts(left, right)
    if isinstance(left, SparseRows):
        raise TypeError("sparse rows on the left meet sparse rows on the right alone")
    return _DenseProducts(left, right, widest)


class _DenseProducts:
    """Of two dense panels: integers in float64 made for one tile at a time."""

    def __init__(self, left: NDArray[np.float32], right: NDArray[np.float32], widest: int) -> None:
        self._left, self._right = left, right
        self._rows: slice | None = None
        self._left_integers = np.empty((0, left.shape[1]))
        # Made once for all tiles: where freed memory goes straight back to the operating system, as
        # in Dask workers, making it anew takes longer than filling it.
        self._right_integers = np.empty((min(widest, right.shape[0]), right.shape[1]))

    def tile(self, rows: slice, columns: slice, out: NDArray[np.float64]) -> None:
        if rows != self._rows:
            self._rows, self._left_integers = rows, to_integers(self._left[rows])
        part = self._right[columns]
        integers = to_integers(part, out=self._right_integers[: part.shape[0]])
        exact_products(self._left_integers, integers, out=out)


class _SparseProducts:
    """Of any left with a sparse right panel: a strip of left rows against the rest of the right.

    Finding a row's users in the right panel costs more than adding up their products, hence as many
    right rows as there are at once.
    """

    def __init__(self, left: FixedRows, right: SparseRows) -> None:
        self._left, self._right = left, right
        self._rows: slice | None = None
        self._first = 0

    def tile(self, rows: slice, columns: slice, out: NDArray[np.float64]) -> None:
        if rows != self._rows:
            # Below the diagonal nothing is asked for: there the strip starts further right.
            if columns.start > self._first:
                self._right = self._right[columns.start - self._first :]
            self._rows, self._first = rows, columns.start
            self._strip = self._products(self._left[rows], self._right)
        out[:] = self._strip[:, columns.start - self._first : columns.stop - self._first]

    @staticmethod
    def _products(left: FixedRows, right: SparseRows) -> NDArray[np.float64]:
        if isinstance(left, SparseRows):
            return sparse_products(left, right)
        return dense_by_sparse_products(to_integers(left), right)
