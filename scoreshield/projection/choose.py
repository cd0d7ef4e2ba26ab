"""The registry of projections. A new method is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy.typing as npt

from scoreshield.errors import ParameterError
from scoreshield.projection import aap, nearest, none, shrink
from scoreshield.projection.method import ProjectionMethod, Request
from scoreshield.projection.operator import SymmetricOperator, as_operator
from scoreshield.projection.result import Iteration, Projection

METHODS: dict[str, ProjectionMethod] = {
    method.name: method
    for method in (
        aap.METHOD,
        nearest.METHOD,
        none.METHOD,
        shrink.METHOD,
    )
}


def project(
    noisy: npt.ArrayLike | SymmetricOperator,
    *,
    sigma: float | None = None,
    method: str = "aap",
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    rank: int | Literal["auto"] | None = None,
    progress: Callable[[Iteration], None] | None = None,
) -> Projection:
    """Project a noisy Gram matrix onto the cosine matrices {X : X PSD, diag X = 1}.

    Parameters
    ----------
    noisy : (n, n) symmetric array, or any :class:`SymmetricOperator`; its diagonal is taken as 1
    sigma : standard deviation σ of the off-diagonal noise; needed by some methods only
    method : a name in ``METHODS``
    tolerance : rms diagonal residual of the PSD iterate at which an iterative method stops
    max_iterations : most iterations; a result that reached them has ``converged`` False
    rank : number of eigenpairs of a truncated PSD step; None or ``"auto"`` for the full spectrum
    progress : called after each iteration

    Returns
    -------
    Projection
        Exactly feasible, except for ``"none"``.

    Raises
    ------
    ParameterError
        For an unknown method or a parameter outside its domain.
    InputRejected
        For an array that is not square, finite and symmetric.
    """
    chosen = method_named(method)
    if not (rank is None or rank == "auto" or isinstance(rank, int)):
        raise ParameterError(f"rank is {rank!r}, expected an integer, 'auto' or None")
    if sigma is not None and not 0.0 <= sigma < float("inf"):
        raise ParameterError(f"sigma is {sigma!r}, expected a finite number, at least 0")
    request = Request(
        sigma=sigma,
        tolerance=tolerance,
        max_iterations=max_iterations,
        rank=rank if isinstance(rank, int) else None,
        progress=progress,
    )
    return chosen.solve(as_operator(noisy), request)


def method_named(name: str) -> ProjectionMethod:
    """The registered method of that name; ParameterError names all of them otherwise."""
    if name not in METHODS:
        raise ParameterError(
            f"projection method {name!r} is unknown, expected one of {', '.join(METHODS)}"
        )
    return METHODS[name]
