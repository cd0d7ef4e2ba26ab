"""The registry of projections, and the call that runs one of them in memory.

A new method is one file in ``methods`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy.typing as npt

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.problem import problem_in_memory
from scoreshield.projection.methods import aap, auto, nearest, none, shrink
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import SymmetricOperator, as_operator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Iteration, Projection
from scoreshield.projection.solution import in_memory

METHODS: dict[str, ProjectionMethod] = {
    method.name: method
    for method in (
        aap.METHOD,
        nearest.METHOD,
        none.METHOD,
        shrink.METHOD,
        auto.METHOD,
    )
}

Form = Literal["auto", "dense", "blockwise"]

LARGEST_DENSE = 3000
"""Largest n that is projected by dense eigendecompositions unless asked otherwise; beyond it the
blockwise form is several times faster and needs a fraction of the memory."""


def project(
    noisy: npt.ArrayLike | SymmetricOperator,
    *,
    sigma: float | None = None,
    method: str = "aap",
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    rank: int | Literal["auto"] | None = None,
    progress: Callable[[Iteration], None] | None = None,
    form: Form = "auto",
) -> Projection:
    """Project a noisy Gram matrix onto the cosine matrices {X : X PSD, diag X = 1}.

    Parameters
    ----------
    noisy : (n, n) symmetric array, or any :class:`SymmetricOperator`; its diagonal is taken as 1
    sigma : standard deviation σ of the off-diagonal noise; needed by some methods only
    method : a name in ``METHODS``
    tolerance : rms diagonal residual of the PSD iterate at which an iterative method stops
    max_iterations : most iterations; a result that reached them has ``converged`` False
    rank : number of eigenpairs of a truncated PSD step; None or ``"auto"`` for the full spectrum in
        the dense form, and for the rank that the blockwise form finds
    progress : called after each iteration
    form : ``"dense"`` for eigendecompositions of the whole matrix, ``"blockwise"`` for products
        with it alone, ``"auto"`` for the dense form up to n = ``LARGEST_DENSE``

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
    request = ProjectionRequest(
        sigma=sigma,
        tolerance=tolerance,
        max_iterations=max_iterations,
        rank=rank if isinstance(rank, int) else None,
        progress=progress,
    )
    if form not in get_args(Form):
        raise ParameterError(f"form is {form!r}, expected one of {', '.join(get_args(Form))}")
    operator = as_operator(noisy)
    blockwise = blockwise_form(chosen, operator.n, form)
    if blockwise is not None:
        return in_memory(blockwise.solve(problem_in_memory(operator, request)))
    return chosen.dense(operator, request)


def blockwise_form(method: ProjectionMethod, n: int, form: Form) -> BlockwiseForm | None:
    """The form by products where a matrix of n rows takes it, None where it takes the dense one."""
    if form == "dense" or (form == "auto" and n <= LARGEST_DENSE):
        return None
    return method.blockwise


def method_named(name: str) -> ProjectionMethod:
    """The registered method of that name; ParameterError names all of them otherwise."""
    if name not in METHODS:
        raise ParameterError(
            f"projection method {name!r} is unknown, expected one of {', '.join(METHODS)}"
        )
    return METHODS[name]
