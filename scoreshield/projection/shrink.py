"""Optimal eigenvalue shrinkage for noise of known σ.

Off its diagonal G = S + W with W symmetric and its entries N(0, σ²): a spiked Wigner matrix. An
eigenvalue s > σ√n of S appears in G at λ = s + σ²n/s, above the noise edge 2σ√n, with an
eigenvector that leans away from the true one. Replacing λ by √(λ² − 4σ²n) = s − σ²n/s, and by 0
below the edge, minimises the asymptotic Frobenius error over all functions of the eigenvalues
(M. Gavish and D. L. Donoho, "Optimal shrinkage of singular values", IEEE Trans. Inf. Theory 63
(2017) 2137–2152; the symmetric case has the spike map of square matrices). The rows are then scaled
to norm at most 1 and the diagonal is completed: with no eigenvalue above the edge the result is the
identity.
"""

from __future__ import annotations

import math

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.certificate import feasibility_certificate
from scoreshield.projection.eigen import full_spectrum, refuse_oversized, top_eigenpairs
from scoreshield.projection.method import ProjectionMethod, Request
from scoreshield.projection.operator import FloatArray, SymmetricOperator, materialise
from scoreshield.projection.result import (
    Projection,
    from_factor,
    rows_within_unit_ball,
    squared_row_norms,
)

MATRICES_AT_PEAK = 4.0
"""Peak memory in units of 8n² bytes, measured; the test of memory keeps it true."""


def eigenvalue_shrinkage(
    operator: SymmetricOperator, *, sigma: float, rank: int | None = None
) -> Projection:
    """Feasible estimate of the clean Gram matrix by optimal eigenvalue shrinkage.

    Parameters
    ----------
    operator : G; its diagonal is taken as 1
    sigma : standard deviation σ ≥ 0 of the off-diagonal noise
    rank : look at this many of the largest eigenpairs only; None looks at all of them

    Returns
    -------
    Projection
        Its rank is the number of eigenvalues above the noise edge.

    Raises
    ------
    ParameterError
        For a σ or rank outside its domain, or n beyond the dense eigensolver.
    """
    if not (math.isfinite(sigma) and sigma >= 0.0):
        raise ParameterError(f"sigma is {sigma!r}, expected a finite number, at least 0")
    if rank is not None and rank < 1:
        raise ParameterError(f"rank is {rank!r}, expected at least 1, or None for all eigenpairs")
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    spectrum = full_spectrum(noisy) if rank is None else top_eigenpairs(noisy, rank)
    edge = 2.0 * sigma * math.sqrt(operator.n)
    kept = spectrum.values > max(edge, spectrum.rounding)
    factor = spectrum.vectors[:, kept] * np.sqrt(shrunk(spectrum.values[kept], edge))
    residual = float(np.sqrt(np.mean((squared_row_norms(factor) - 1.0) ** 2)))
    factor = rows_within_unit_ball(factor)
    return from_factor(
        factor,
        method=METHOD.name,
        parameters={
            "sigma": sigma,
            "noise_edge": edge,
            "spectrum": "full" if rank is None else "truncated",
            "rank_limit": rank,
        },
        certificate=feasibility_certificate(factor, residual),
        products=products,
    )


def shrunk(values: FloatArray, edge: float) -> FloatArray:
    """√(λ² − edge²) for eigenvalues λ > edge = 2σ√n, (k,) → (k,)."""
    # As a product of two factors, which keeps digits where λ is close to the edge.
    result: FloatArray = np.sqrt((values - edge) * (values + edge))
    return result


def memory_bytes(n: int) -> int:
    """Peak memory of the in-memory form on top of the caller's array, in bytes."""
    return int(MATRICES_AT_PEAK * 8 * n * n)


def _solve(operator: SymmetricOperator, request: Request) -> Projection:
    if request.sigma is None:
        raise ParameterError(
            "method 'shrink' needs the noise level, and sigma was not given; pass the σ of the "
            "release, or use method 'nearest', which needs none"
        )
    return eigenvalue_shrinkage(operator, sigma=request.sigma, rank=request.rank)


METHOD = ProjectionMethod(
    name="shrink",
    summary="optimal eigenvalue shrinkage for noise of known sigma",
    solve=_solve,
    memory_bytes=memory_bytes,
)
