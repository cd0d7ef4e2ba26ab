"""``shrink``: optimal eigenvalue shrinkage for noise of known σ."""

from __future__ import annotations

import math
from typing import Any

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.nearest import NearestState
from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.blockwise.shrink import HandoverState, ShrinkState, shrink_blockwise
from scoreshield.projection.blockwise.subspace import KRYLOV_DEPTH
from scoreshield.projection.dense.shrink import eigenvalue_shrinkage
from scoreshield.projection.foretold import NoisySpectrum, SolverWork, work_on_panels
from scoreshield.projection.methods import nearest
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Projection
from scoreshield.projection.solution import Solution

STATES = (ShrinkState, HandoverState)
"""What an attempt goes on from."""


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    """On the full spectrum, or on its given number of largest eigenpairs."""
    return eigenvalue_shrinkage(operator, sigma=_noise_level(request), rank=request.rank)


def blockwise(problem: BlockwiseProblem[Any]) -> Solution[Any]:
    """On the eigenpairs above the noise edge, which are searched for."""
    request = problem.request
    sigma = _noise_level(request)
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but the blockwise 'shrink' finds the number of its "
            "spikes; leave rank out"
        )
    return shrink_blockwise(
        problem.operator,
        problem.algebra,
        sigma=sigma,
        **problem.iteration(request.tolerance, STATES),
    )


def _noise_level(request: ProjectionRequest) -> float:
    if request.sigma is None:
        raise ParameterError(
            "method 'shrink' needs the noise level, and sigma was not given; pass the σ of the "
            "release, or use method 'nearest', which needs none"
        )
    return request.sigma


def foretold_work(spectrum: NoisySpectrum) -> SolverWork:
    width = min(spectrum.n, math.ceil(1.3 * spectrum.spikes) + 12)
    products = 45 if spectrum.borders_on_noise and spectrum.spikes > 2 else 30
    columns = spectrum.columns(products, width)
    return work_on_panels(
        spectrum,
        rank=spectrum.spikes,
        products=products,
        columns=columns,
        steps=330 + 2.5 * products,
        passes=25,
        largest=KRYLOV_DEPTH * width,
    )


METHOD = ProjectionMethod(
    name="shrink",
    summary="optimal eigenvalue shrinkage for noise of known sigma",
    dense=dense,
    # Where the exact projection takes over; about 4 otherwise.
    matrices_at_peak=nearest.METHOD.matrices_at_peak,
    eigendecompositions=1,
    blockwise=BlockwiseForm(
        solve=blockwise,
        width=lambda spectrum: spectrum.spike_width,
        work=foretold_work,
        states=(*STATES, NearestState),
    ),
)
