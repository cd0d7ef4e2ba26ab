"""The symmetric operator that every projection is written against.

A projection only ever needs n, products G·W with a panel W, and the diagonal of G. In memory the
operator is an array; a blockwise operator offers the same three names. Whatever diagonal comes in,
the projected matrix is G with a unit diagonal, because the diagonal of a cosine Gram matrix is 1
by definition and carries no information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from scoreshield.errors import InputRejected

FloatArray = npt.NDArray[np.float64]

ASYMMETRY_LIMIT = 1e-8
"""Largest |a_ij − a_ji|, relative to the largest |a_ij|, that counts as rounding."""

LARGEST_ENTRY = 1e15
"""Largest |a_ij| beside which the unit diagonal still has a digit in float64."""

PANEL = 256
"""Rows or columns that are handled at once where a full temporary matrix is to be avoided."""


@runtime_checkable
class SymmetricOperator(Protocol):
    """A symmetric n × n matrix known by its products.

    ``diagonal`` is the diagonal that ``matmat`` multiplies with, shape (n,), float64.
    """

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        ...

    @property
    def diagonal(self) -> FloatArray:
        """Diagonal of the matrix, shape (n,)."""
        ...

    def matmat(self, W: FloatArray) -> FloatArray:
        """Product G·W, (n, k) → (n, k)."""
        ...


class DenseOperator:
    """A symmetric array with its diagonal set to 1.

    Parameters
    ----------
    array : (n, n) array of real numbers
        Copied to float64; the diagonal must be finite but is otherwise ignored. Asymmetry at
        rounding level (``ASYMMETRY_LIMIT``) is averaged away.

    Raises
    ------
    InputRejected
        When the array is not square, not real, not finite, not symmetric, or larger than
        ``LARGEST_ENTRY`` off the diagonal; the message names the first offending position.
    """

    def __init__(self, array: npt.ArrayLike) -> None:
        matrix = _square_float64(np.asarray(array))
        _refuse_non_finite(matrix)
        _symmetrise(matrix)
        np.fill_diagonal(matrix, 1.0)
        _refuse_oversized_entries(matrix)
        matrix.flags.writeable = False
        self._array = matrix

    @property
    def array(self) -> FloatArray:
        """The matrix itself, (n, n) float64, read-only, exactly symmetric, unit diagonal."""
        return self._array

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return int(self._array.shape[0])

    @property
    def diagonal(self) -> FloatArray:
        """Ones, shape (n,)."""
        return np.ones(self.n)

    def matmat(self, W: FloatArray) -> FloatArray:
        """Product G·W, (n, k) → (n, k)."""
        product: FloatArray = self._array @ W
        return product


class UnitDiagonalOperator:
    """Any operator with its diagonal replaced by 1: G·W + (1 − diag G) ∘ W."""

    def __init__(self, operator: SymmetricOperator) -> None:
        self._operator = operator
        self._correction = 1.0 - np.asarray(operator.diagonal, dtype=np.float64)

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return self._operator.n

    @property
    def diagonal(self) -> FloatArray:
        """Ones, shape (n,)."""
        return np.ones(self.n)

    def matmat(self, W: FloatArray) -> FloatArray:
        """Product with the unit-diagonal matrix, (n, k) → (n, k)."""
        return self._operator.matmat(W) + self._correction[:, None] * W


class CountingOperator:
    """Any operator, with its products counted.

    ``products`` is the number of calls G × (n × k), ``columns`` the sum of their k.
    """

    def __init__(self, operator: SymmetricOperator) -> None:
        self._operator = operator
        self.products = 0
        self.columns = 0

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return self._operator.n

    @property
    def diagonal(self) -> FloatArray:
        """Diagonal of the counted operator, shape (n,)."""
        return self._operator.diagonal

    def matmat(self, W: FloatArray) -> FloatArray:
        """Product G·W, (n, k) → (n, k); adds 1 to ``products`` and k to ``columns``."""
        self.products += 1
        self.columns += W.shape[1]
        return self._operator.matmat(W)


def as_operator(noisy: npt.ArrayLike | SymmetricOperator) -> SymmetricOperator:
    """Operator with unit diagonal for an array or for anything that speaks the protocol.

    Raises
    ------
    InputRejected
        When an array is no finite symmetric matrix, or an operator's diagonal is not (n,) finite
        numbers.
    """
    # An ndarray lacks `matmat` and `n`, so it can never be mistaken for an operator.
    if not isinstance(noisy, SymmetricOperator):
        return DenseOperator(noisy)
    diagonal = np.asarray(noisy.diagonal, dtype=np.float64)
    if diagonal.shape != (noisy.n,):
        raise InputRejected(
            f"the operator's diagonal has shape {diagonal.shape}, expected ({noisy.n},); "
            "give one number a row"
        )
    if not np.all(np.isfinite(diagonal)):
        row = int(np.flatnonzero(~np.isfinite(diagonal))[0])
        raise InputRejected(
            f"the operator's diagonal is {diagonal[row]} at row {row}, expected finite numbers; "
            "check that every block was written"
        )
    return noisy if np.all(diagonal == 1.0) else UnitDiagonalOperator(noisy)


def materialise(operator: SymmetricOperator) -> tuple[FloatArray, int]:
    """The unit-diagonal matrix behind an operator, and the products that it took.

    Returns
    -------
    matrix : (n, n) float64, read-only, exactly symmetric, unit diagonal
    products : number of G × (n × k) products; 0 for a :class:`DenseOperator`

    Raises
    ------
    InputRejected
        As for :class:`DenseOperator`.
    """
    if isinstance(operator, DenseOperator):
        return operator.array, 0
    counted = CountingOperator(operator)
    matrix = np.empty((operator.n, operator.n))
    for columns in panels(operator.n):
        identity = np.zeros((operator.n, columns.stop - columns.start))
        identity[np.arange(columns.start, columns.stop), np.arange(identity.shape[1])] = 1.0
        matrix[:, columns] = counted.matmat(identity)
    return DenseOperator(matrix).array, counted.products


def dense(operator: SymmetricOperator) -> FloatArray:
    """The unit-diagonal matrix behind an operator, (n, n) float64, read-only."""
    return materialise(operator)[0]


def panels(n: int) -> Iterator[slice]:
    """Consecutive slices that cover range(n), ``PANEL`` indices each."""
    for start in range(0, n, PANEL):
        yield slice(start, min(start + PANEL, n))


def _square_float64(array: npt.NDArray[Any]) -> FloatArray:
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise InputRejected(
            f"the noisy matrix has shape {array.shape}, expected (n, n) with n ≥ 1; "
            "pass the full symmetric Gram matrix"
        )
    if array.dtype.kind not in "fiub":
        raise InputRejected(
            f"the noisy matrix has dtype {array.dtype}, expected real numbers; "
            "convert it to float64 first"
        )
    return np.array(array, dtype=np.float64, order="C")


def _refuse_non_finite(matrix: FloatArray) -> None:
    # LAPACK may hang on NaN, so this comes before any decomposition.
    found = _first_where(matrix, lambda rows: ~np.isfinite(rows))
    if found is not None:
        i, j = found
        raise InputRejected(
            f"the noisy matrix holds {matrix[i, j]} at row {i}, column {j}, expected finite "
            "numbers; a NaN here usually means a block that was never written"
        )


def _refuse_oversized_entries(matrix: FloatArray) -> None:
    found = _first_where(matrix, lambda rows: np.abs(rows) > LARGEST_ENTRY)
    if found is not None:
        i, j = found
        raise InputRejected(
            f"the noisy matrix holds {matrix[i, j]:g} at row {i}, column {j}, expected at most "
            f"{LARGEST_ENTRY:g} in size: beside it the unit diagonal is lost to rounding; "
            "check the scale of the matrix"
        )


def _first_where(
    matrix: FloatArray, is_bad: Callable[[FloatArray], npt.NDArray[np.bool_]]
) -> tuple[int, int] | None:
    """Row and column of the first bad entry, looked for a few rows at a time."""
    for rows in panels(matrix.shape[0]):
        bad = is_bad(matrix[rows])
        if bad.any():
            i, j = (int(k) for k in np.argwhere(bad)[0])
            return i + rows.start, j
    return None


def _symmetrise(matrix: FloatArray) -> None:
    n = matrix.shape[0]
    largest = max((float(np.abs(matrix[rows]).max()) for rows in panels(n)), default=0.0)
    for rows in panels(n):
        # Only columns from the panel's start on: the rest was averaged with earlier panels.
        upper = matrix[rows, rows.start :]
        lower = matrix[rows.start :, rows].T
        asymmetric = np.abs(upper - lower) > ASYMMETRY_LIMIT * largest
        if asymmetric.any():
            i, j = (int(k) + rows.start for k in np.argwhere(asymmetric)[0])
            raise InputRejected(
                f"the noisy matrix is not symmetric: {matrix[i, j]!r} at ({i}, {j}) but "
                f"{matrix[j, i]!r} at ({j}, {i}), expected equal up to {ASYMMETRY_LIMIT} of the "
                "largest entry; mirror the upper triangle first"
            )
        mean = 0.5 * (upper + lower)
        matrix[rows, rows.start :] = mean
        matrix[rows.start :, rows] = mean.T
