"""Sparse fixed-point rows: the integers of :mod:`scoreshield.arithmetic.fixedpoint`, most of them
zero.

A record of ratings has one feature for every user (or item) and a value for few of them. Its row is
normalised and rounded exactly as a dense row is, to the same integers in units of 2^-24, and inner
products are the same exact integers. A row without entries stands for a substituted record: the
fixed unit vector of equal coordinates, which is never written out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import (
    LARGEST_NORM_SQUARED,
    ONE,
    refuse_rows,
    rounding_radius,
    substitute_row,
)

LARGEST_SPARSE_DIMENSION = 2**31 - 1
"""Columns are numbered in 32 bits."""

_EXPECTED = "fixed-point rows of norm at most one"


@dataclass(frozen=True, eq=False)
class SparseRows:
    """k fixed-point rows of d features in compressed form.

    Attributes
    ----------
    pointers : (k + 1,) int64; row i has the entries ``pointers[i]`` to ``pointers[i + 1]``.
    columns : (e,) int32, strictly increasing within a row.
    integers : (e,) int32, not zero, in units of 2^-24.
    dimension : d, the number of features.
    """

    pointers: NDArray[np.int64]
    columns: NDArray[np.int32]
    integers: NDArray[np.int32]
    dimension: int

    @property
    def shape(self) -> tuple[int, int]:
        """(k, d)."""
        return len(self.pointers) - 1, self.dimension

    def __getitem__(self, rows: slice) -> SparseRows:
        """Successive rows."""
        start, stop, _ = rows.indices(self.shape[0])
        pointers = self.pointers[start : stop + 1]
        entries = slice(int(pointers[0]), int(pointers[-1]))
        return SparseRows(
            pointers - pointers[0], self.columns[entries], self.integers[entries], self.dimension
        )

    @cached_property
    def matrix(self) -> scipy.sparse.csr_array:
        """The stored integers (k, d) in float64, which products of them need."""
        data = self.integers.astype(np.float64)
        # SciPy computes in 32-bit indices where pointers have them too.
        narrow = len(data) < 2**31
        pointers = self.pointers.astype(np.int32) if narrow else self.pointers
        columns = self.columns if narrow else self.columns.astype(np.int64)
        matrix = scipy.sparse.csr_array((data, columns, pointers), shape=self.shape)
        matrix.has_sorted_indices = True
        matrix.has_canonical_format = True
        return matrix

    @cached_property
    def transposed(self) -> scipy.sparse.csr_array:
        """The same integers feature by feature (d, k), as the right side of a product."""
        return self.matrix.T.tocsr()

    @cached_property
    def substituted(self) -> NDArray[np.bool_]:
        """Which rows (k,) have no entries and stand for the substitute."""
        empty: NDArray[np.bool_] = np.diff(self.pointers) == 0
        return empty

    def dense(self) -> NDArray[np.float32]:
        """The same rows (k, d) written out."""
        rows = (self.matrix.toarray() / ONE).astype(np.float32)
        if self.substituted.any():
            rows[self.substituted] = substitute_row(self.dimension)
        return rows


def to_fixed_sparse(
    pointers: NDArray[np.int64], values: NDArray[Any], dimension: int
) -> NDArray[np.int32]:
    """Normalise each row and round it: the integers that a dense row would get.

    The operations of :func:`scoreshield.arithmetic.fixedpoint.to_fixed` in the same order; zeros,
    which that one adds, change no sum. Values of a row stand in the order of its features.

    Parameters
    ----------
    pointers : (k + 1,) where each row's values start; a row may have none.
    values : (e,) real and finite; each row that has values has one that is not zero.

    Returns
    -------
    (e,) integers in units of 2^-24, zeros among them where a value is too small.

    Raises
    ------
    InputRejected
        A row is not finite, or holds zeros alone.
    """
    lengths = np.diff(pointers)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    scaled = np.asarray(values, dtype=np.float64)
    largest = _largest(np.abs(scaled), pointers)
    refuse_rows(~np.isfinite(largest), "hold NaN or infinite values", _EXPECTED)
    refuse_rows((largest == 0) & (lengths > 0), "are zero and have no direction", _EXPECTED)
    scaled = np.ldexp(scaled, -np.frexp(largest)[1][rows])
    # bincount adds in the order of the entries, as the dense sum adds feature by feature.
    norm_squared = np.bincount(rows, weights=scaled * scaled, minlength=len(lengths))
    norm_squared[lengths == 0] = 1.0
    scaled *= ((1 - rounding_radius(dimension)) / np.sqrt(norm_squared))[rows]
    return np.rint(scaled * ONE).astype(np.int32)


def check_fixed_sparse(rows: SparseRows) -> None:
    """Refuse rows that are not in canonical form, or longer than one.

    The sensitivity of a release rests on norms of at most one, so they are checked exactly: squares
    of a valid row sum exactly, and rounding can't bring an invalid one below the bound. A column
    that came twice would count twice in a product, hence the strict order.

    Raises
    ------
    InputRejected
        A row breaks this; the first such rows are named.
    """
    lengths = np.diff(rows.pointers)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    columns, integers = rows.columns, rows.integers.astype(np.float64)
    wrong = (columns < 0) | (columns >= rows.dimension) | (integers == 0)
    follows = np.zeros(len(columns), dtype=bool)
    follows[1:] = owner[1:] == owner[:-1]
    wrong[1:] |= follows[1:] & (columns[1:] <= columns[:-1])
    refuse_rows(_any_of(wrong, owner, len(lengths)), "are not in canonical form", _EXPECTED)
    norm_squared = np.bincount(owner, weights=integers * integers, minlength=len(lengths))
    refuse_rows(norm_squared > LARGEST_NORM_SQUARED, "are longer than one", _EXPECTED)


def substitute_integer(dimension: int) -> float:
    """Every coordinate of the substitute of a zero row, in units of 2^-24.

    That of :func:`scoreshield.arithmetic.fixedpoint.substitute_row`, whose d halves have squares
    that sum exactly.
    """
    scale = (1 - rounding_radius(dimension)) / math.sqrt(0.25 * dimension)
    return float(np.rint(0.5 * scale * ONE))


def sparse_products(left: SparseRows, right: SparseRows) -> NDArray[np.float64]:
    """Inner products (k, l) of sparse rows, exact, in units of 2^-48.

    Every partial sum is an integer of at most 2^48, so the order in which SciPy adds is immaterial.
    With the substitute c·1, a product is c·Σv, or c²·d: integers within the same bound.
    """
    products: NDArray[np.float64] = (left.matrix @ right.transposed).toarray()
    _add_substitutes(products, left, right)
    return products


def dense_by_sparse_products(left: NDArray[np.float64], right: SparseRows) -> NDArray[np.float64]:
    """Inner products (k, l) of dense integer rows (k, d) and sparse rows, exact, units of 2^-48."""
    products: NDArray[np.float64] = np.ascontiguousarray((right.matrix @ left.T).T)
    if right.substituted.any():
        constant = substitute_integer(right.dimension)
        products[:, right.substituted] = constant * left.sum(axis=1)[:, None]
    return products


def _add_substitutes(products: NDArray[np.float64], left: SparseRows, right: SparseRows) -> None:
    """Fill in the rows and columns of substituted records, which the stored entries leave zero."""
    above, beside = left.substituted, right.substituted
    if not (above.any() or beside.any()):
        return
    constant = substitute_integer(left.dimension)
    products[above] = constant * right.matrix.sum(axis=1)
    products[:, beside] = constant * left.matrix.sum(axis=1)[:, None]
    products[np.ix_(above, beside)] = constant * constant * left.dimension


def _largest(magnitudes: NDArray[np.float64], pointers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Largest value of each row (k,), zero where it has none; NaN wins."""
    largest = np.zeros(len(pointers) - 1)
    filled = np.flatnonzero(np.diff(pointers))
    if filled.size:
        largest[filled] = np.maximum.reduceat(magnitudes, pointers[filled])
    return largest


def _any_of(marked: NDArray[np.bool_], owner: NDArray[np.intp], count: int) -> NDArray[np.bool_]:
    rows = np.zeros(count, dtype=bool)
    rows[owner[marked]] = True
    return rows
