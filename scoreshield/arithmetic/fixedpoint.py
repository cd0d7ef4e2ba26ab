"""Embeddings as fixed-point unit rows, so that inner products are exact integers.

Floating-point inner products depend on the order of summation, and that order depends on the
machine, the thread count and the block shape; rounding then leaks through the noise (Casacuberta
et al. 2022, Haney et al. 2022). Rows are therefore rounded once to multiples of 2^-24. Products of
such rows are multiples of 2^-48 whose partial sums never exceed one, hence integers below 2^53 that
float64 adds exactly in any order.

24 bits are the most that a float32 holds exactly, so a gallery stores fixed-point rows as float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InputRejected

FRACTION_BITS = 24
LARGEST_DIMENSION = 2**15
ONE = 2.0**FRACTION_BITS
"""1 in units of 2^-24."""
LARGEST_NORM_SQUARED = 4.0**FRACTION_BITS
"""1 in units of 2^-48."""

# 256 KiB of float64: a strip of rows and what is made of it stay in cache.
_STRIP_VALUES = 2**15
_SHOWN_ROWS = 5


def rounding_radius(dimension: int) -> float:
    """Upper bound ρ on how far rounding moves a row from (1 − ρ) times its unit row.

    Rounding to the nearest multiple moves each of d coordinates by at most half of 2^-24, hence
    the row by at most ½√d·2^-24. The second term covers the float64 norm and quotient: a sum of
    d squares in sequence has relative error at most d·2^-53. The shrinking by 1 − ρ is the same for
    every row, so two unit rows r apart are at most r + 2ρ apart in fixed point.
    """
    return 0.5 * math.sqrt(dimension) * 2.0**-FRACTION_BITS * (1 + 2.0**-40) + dimension * 2.0**-51


def to_fixed(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Normalise each row and round it to multiples of 2^-24.

    The row is shrunk by ``1 - rounding_radius(d)`` before rounding, so that its norm cannot exceed
    one afterwards; the bound is then checked exactly. Every step is an elementwise IEEE operation
    in a fixed order: the result has the same bits on any machine.

    Parameters
    ----------
    rows : (k, d) real array of any float or integer type, finite, no zero row.

    Returns
    -------
    (k, d) float32 rows, each value an integer times 2^-24, each norm at most one.

    Raises
    ------
    InputRejected
        A row is zero or not finite.
    """
    values = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)
    largest = np.max(np.abs(values), axis=0)
    refuse_rows(~np.isfinite(largest), "hold NaN or infinite values")
    refuse_rows(largest == 0, "are zero and have no direction")
    # A power of two brings the largest coordinate near one: squares cannot over- or underflow.
    values = np.ldexp(values, -np.frexp(largest)[1])
    norm_squared = np.zeros(values.shape[1])
    for feature in values:
        norm_squared += feature * feature
    values *= (1 - rounding_radius(values.shape[0])) / np.sqrt(norm_squared)
    fixed = np.ascontiguousarray((np.rint(values * ONE) / ONE).T.astype(np.float32))
    check_fixed(fixed)
    return fixed


def to_integers(
    rows: NDArray[np.float32], out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Fixed-point rows (k, d) as integers in units of 2^-24, held in float64 (in ``out``)."""
    integers: NDArray[np.float64] = np.multiply(rows, ONE, out=out, dtype=np.float64)
    return integers


def check_fixed(rows: NDArray[np.float32]) -> None:
    """Refuse rows that are off the 2^-24 grid or longer than one.

    The sensitivity of a release rests on these two facts, so they are checked exactly: the sum of
    squares of a valid row is exact, and rounding can't bring an invalid one below the bound.

    Raises
    ------
    InputRejected
        A row breaks either fact (NaN included); the first such rows are named.
    """
    count, d = rows.shape
    off_grid, norm_squared = np.empty(count, dtype=np.bool_), np.empty(count)
    step = max(1, _STRIP_VALUES // max(1, d))
    integers, rounded = np.empty((2, min(step, count), d))
    for start in range(0, count, step):
        strip = slice(start, min(start + step, count))
        value, nearest = (part[: strip.stop - start] for part in (integers, rounded))
        np.rint(to_integers(rows[strip], out=value), out=nearest)
        # NaN differs from itself.
        np.any(nearest != value, axis=1, out=off_grid[strip])
        np.einsum("ij,ij->i", value, value, out=norm_squared[strip])
    refuse_rows(off_grid, f"are not multiples of 2^-{FRACTION_BITS}")
    refuse_rows(~(norm_squared <= LARGEST_NORM_SQUARED), "are longer than one")


def substitute_row(dimension: int) -> NDArray[np.float32]:
    """The fixed unit vector (d,) that stands for a zero row: equal coordinates.

    It depends on d alone, so a substituted record reveals nothing about any other record, and it
    is non-negative, so a gallery of ratings or counts keeps its score range [0, 1].
    """
    row: NDArray[np.float32] = to_fixed(np.ones((1, dimension)))[0]
    return row


def exact_products(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    out: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Inner products (k, l) of integer rows (k, d) and (l, d), exact, in units of 2^-48."""
    products: NDArray[np.float64] = np.matmul(left, right.T, out=out)
    return products


def refuse_rows(
    offending: NDArray[np.bool_], complaint: str, expected: str = "non-zero finite unit rows"
) -> None:
    """Refuse a panel (k, d) with offending rows (k,); the first of them are named."""
    if offending.any():
        first = ", ".join(str(row) for row in np.flatnonzero(offending)[:_SHOWN_ROWS])
        raise InputRejected(
            f"{int(offending.sum())} of {offending.size} rows {complaint}; "
            f"the first within this panel: {first}. Expected {expected}."
        )
