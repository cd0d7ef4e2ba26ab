"""The iterate of ``aap`` with weight 1, computed from its factor and never stored.

X = R_ω(F·Fᵀ) = F·Fᵀ + ω (P_box(F·Fᵀ) − F·Fᵀ): a block of X is a product of two row panels of F,
relaxed towards its clipped self, and enters a product with a panel at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scoreshield.projection.aap import relaxed_box
from scoreshield.projection.operator import panels


class ClippedFactorOperator:
    """R_ω(F·Fᵀ) by its products with panels in memory.

    Parameters
    ----------
    factor : F, (n, r), float64 or float32
    relaxation : ω in (0, 2)
    """

    def __init__(self, factor: npt.NDArray[Any], relaxation: float) -> None:
        self._factor = factor
        self._relaxation = relaxation

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return int(self._factor.shape[0])

    def matmat(self, W: npt.NDArray[Any], /) -> npt.NDArray[Any]:
        """Product R_ω(F·Fᵀ)·W, (n, k) → (n, k), in row panels."""
        product = np.empty_like(W)
        for rows in panels(self.n):
            block = self._factor[rows] @ self._factor.T
            product[rows] = relaxed_box(block, self._relaxation, rows.start) @ W
        return product
