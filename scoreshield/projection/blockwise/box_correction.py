"""What the box step of ``aap`` changes, computed from the factor and never stored as a matrix.

E = P_box(F·Fᵀ) − F·Fᵀ is what clipping the entries and setting the diagonal to 1 adds. Off the
diagonal it is 0 wherever F·Fᵀ lies in the box, which is nearly everywhere once the rows of F are
about as long as 1, because |FᵢᵀFⱼ| ≤ ‖Fᵢ‖‖Fⱼ‖. So a block of E is dense in the first steps, holds
a few numbers later, and is a diagonal or nothing at the end. Finding out costs one product of two
row panels; what is found to be sparse multiplies a panel at next to no cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

SPARSE_SHARE = 1.0 / 64.0
"""Share of nonzero numbers up to which a block of E is kept in sparse form: there the sparse
product and the dense one take about as long."""

BLOCK_ROWS = 1024

CorrectionBlock = npt.NDArray[Any] | scipy.sparse.csr_array


def correction_block(
    left: npt.NDArray[Any], right: npt.NDArray[Any], *, diagonal: bool
) -> CorrectionBlock:
    """A block of E = P_box(F·Fᵀ) − F·Fᵀ, (b, c): sparse where few of its numbers are not 0.

    Parameters
    ----------
    left, right : row panels of F, (b, r) and (c, r)
    diagonal : whether the block lies on the diagonal, which P_box sets to 1
    """
    product = left @ right.T
    outside = np.abs(product) > 1.0
    if diagonal:
        np.fill_diagonal(outside, True)
    if np.count_nonzero(outside) > SPARSE_SHARE * outside.size:
        boxed: npt.NDArray[Any] = np.clip(product, -1.0, 1.0)
        if diagonal:
            np.fill_diagonal(boxed, 1.0)
        boxed -= product
        return boxed
    rows, columns = np.nonzero(outside)
    values = product[rows, columns]
    inside = np.where(rows == columns, 1.0, np.sign(values)) if diagonal else np.sign(values)
    change = (inside - values).astype(product.dtype, copy=False)
    return scipy.sparse.csr_array((change, (rows, columns)), shape=product.shape)


class BoxCorrection:
    """E by its products with panels in memory.

    Sparse blocks are held from one product to the next, dense ones computed again.

    Parameters
    ----------
    factor : F, (n, r), float64 or float32
    """

    def __init__(self, factor: npt.NDArray[Any]) -> None:
        self._factor = factor
        self._held: dict[tuple[int, int], scipy.sparse.csr_array] = {}

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return int(self._factor.shape[0])

    def matmat(self, W: npt.NDArray[Any], /) -> npt.NDArray[Any]:
        """Product E·W, (n, k) → (n, k), by the blocks of the upper triangle."""
        product = np.zeros_like(W)
        spans = [
            slice(first, min(first + BLOCK_ROWS, self.n)) for first in range(0, self.n, BLOCK_ROWS)
        ]
        for j, columns in enumerate(spans):
            for i, rows in enumerate(spans[: j + 1]):
                block = self._block(i, j, rows, columns)
                product[rows] += block @ W[columns]
                if i != j:
                    product[columns] += block.T @ W[rows]
        return product

    def _block(self, i: int, j: int, rows: slice, columns: slice) -> CorrectionBlock:
        held = self._held.get((i, j))
        if held is not None:
            return held
        block = correction_block(self._factor[rows], self._factor[columns], diagonal=i == j)
        if scipy.sparse.issparse(block):
            self._held[i, j] = block
        return block
