"""The arrays that leave: float32, with every promise kept after the final cast.

A factor F (n, r) is cast so that each row's exact norm² is at most 1. Then F·Fᵀ with 1 on the
diagonal equals F·Fᵀ + Diag(1 − ‖Fᵢ‖²), which is positive semidefinite whatever was rounded before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import ParameterError

FloatPanel = NDArray[np.float32]
_SHRINK = 1 - 2.0**-22


def released_factor(factor: NDArray[np.float64]) -> tuple[FloatPanel, FloatPanel]:
    """Factor (n, r) and diagonal (n,) as float32; the diagonal is 1 − ‖Fᵢ‖² of the float32 rows.

    The cast can lengthen a unit row by 2^-24, so rows that are not provably short enough are
    shrunk by 2^-22 before it.

    Raises
    ------
    ParameterError
        A row was longer than 1 already, or is not finite.
    """
    rows = factor.astype(np.float32)
    limit = publishing_limit(factor.shape[1])
    long = ~(squared_norms(rows) <= limit)
    rows[long] = (factor[long] * _SHRINK).astype(np.float32)
    norms = squared_norms(rows)
    if not (norms <= limit).all():
        raise ParameterError(
            f"{int((~(norms <= limit)).sum())} rows of the factor are longer than 1, the first is "
            f"row {int(np.flatnonzero(~(norms <= limit))[0])}; scale the rows before the cast"
        )
    return rows, np.maximum(1.0 - norms, 0.0).astype(np.float32)


def squared_norms(rows: FloatPanel) -> NDArray[np.float64]:
    """‖Fᵢ‖² (n,) of float32 rows (n, r): exact squares, their sum off by at most r·2^-53."""
    wide = rows.astype(np.float64)
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide)
    return norms


def verified_limit(rank: int) -> float:
    """A computed norm² up to this proves that the exact one is at most 1."""
    return 1.0 - (rank + 2) * 2.0**-53


def publishing_limit(rank: int) -> float:
    """Stricter than :func:`verified_limit`, so that another order of summation still passes it."""
    return 1.0 - 4 * (rank + 2) * 2.0**-53


def entry_rounding(rank: int) -> float:
    """Largest |gram[i, j] − Fᵢ·Fⱼ| of two evaluations of a released entry.

    Half a float32 unit in the last place below 1 is 2^-25; a float64 product of r terms is off by
    at most (r + 2)·2^-53, once when published and once when recomputed (Higham 2002, section 3.1).
    """
    return 2.0**-25 + 2 * (rank + 2) * 2.0**-53


def gram_block(left: FloatPanel, right: FloatPanel) -> FloatPanel:
    """Similarities (k, l) of factor rows (k, r) and (l, r), away from the diagonal.

    The float64 product is clipped to [−1, 1]; the cast to float32 rounds and can't leave it.
    """
    product = left.astype(np.float64) @ right.astype(np.float64).T
    np.clip(product, -1.0, 1.0, out=product)
    return product.astype(np.float32)


def with_unit_diagonal(block: FloatPanel) -> FloatPanel:
    """A diagonal block (k, k) made exactly symmetric with exactly 1 on the diagonal."""
    upper = np.triu(block, 1)
    symmetric: FloatPanel = upper + upper.T
    np.fill_diagonal(symmetric, 1.0)
    return symmetric
