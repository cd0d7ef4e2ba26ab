"""The smallest eigenvalue of a released Gram matrix: computed where it fits, else estimated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from pipeline.check import Check, Listener
from pipeline.storage import arrays
from scoreshield.manifest.schema import Manifest
from scoreshield.mechanisms.released import entry_rounding

DENSE_LIMIT = 5000
"""Largest n whose smallest eigenvalue is computed from the full spectrum."""
_LANCZOS_PASSES = 300


def feasibility_check(gram: Any, manifest: Manifest, tell: Listener) -> Check:
    """Whether λ_min is what the projection promises; its ``value`` is λ_min as it was found."""
    n = gram.shape[0]
    # The projected matrix is PSD and each entry was rounded to float32: λ_min ≥ −‖E‖_F.
    rank = manifest.post_processing.rank or n
    bound = math.sqrt(n * (n - 1)) * entry_rounding(rank)
    claimed = manifest.post_processing.feasible
    if n <= DENSE_LIMIT:
        smallest, how = _dense_smallest(gram)
    else:
        smallest, how = _lanczos_smallest(gram, 1e-6 if claimed else 1e-2, tell)
    found = f"{smallest:.6g} ({how})"
    if not claimed:
        return Check("smallest eigenvalue", True, f"{found}; feasibility is not claimed", smallest)
    ok, detail = smallest >= -bound, f"{found}, expected at least -{bound:.3g}"
    return Check("smallest eigenvalue", ok, detail, smallest)


def _dense_smallest(gram: Any) -> tuple[float, str]:
    n = gram.shape[0]
    matrix = np.empty((n, n))
    for rows in arrays.row_panels(gram):
        matrix[rows] = arrays.read(gram, (rows, slice(0, n)))
    values = scipy.linalg.eigh(
        matrix, eigvals_only=True, overwrite_a=True, check_finite=False, driver="evr"
    )
    return float(values[0]), "from the full spectrum"


def _lanczos_smallest(gram: Any, tolerance: float, tell: Listener) -> tuple[float, str]:
    """λ_min of the stored matrix by Lanczos on I − G, a pass over the store a product.

    The shift by 1 makes the stopping tolerance an absolute one, however small λ_min is.
    """
    n = gram.shape[0]
    passes = 0

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal passes
        passes += 1
        tell("passes for the smallest eigenvalue", passes, _LANCZOS_PASSES)
        flat = vector.reshape(n)
        result = flat.copy()
        for rows in arrays.row_panels(gram):
            result[rows] -= arrays.read(gram, (rows, slice(0, n))) @ flat
        return result

    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=product, dtype=np.float64)
    # A fixed start keeps the report reproducible; it has a part along every eigenvector but for
    # a set of measure zero.
    start = np.cos(np.arange(n) * math.sqrt(2.0))
    try:
        values = scipy.sparse.linalg.eigsh(
            operator,
            k=1,
            which="LA",
            v0=start,
            tol=tolerance,
            maxiter=_LANCZOS_PASSES // 10,
            return_eigenvectors=False,
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        return _rayleigh(product, start), f"Lanczos did not settle in {passes} passes; upper bound"
    return 1.0 - float(values[-1]), f"Lanczos estimate, {passes} passes"


def _rayleigh(
    product: Callable[[NDArray[np.float64]], NDArray[np.float64]], vector: NDArray[np.float64]
) -> float:
    return 1.0 - float(vector @ product(vector)) / float(vector @ vector)
