"""``nearest``: the exact Frobenius projection."""

from __future__ import annotations

import math
from typing import Any

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.dual_certificate import PROBE_BLOCK, PROBE_DEPTH
from scoreshield.projection.blockwise.nearest import (
    SPARE_PAIRS,
    NearestState,
    kept_pairs,
    nearest_blockwise,
)
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.blockwise.single_precision import nearest_in_memory
from scoreshield.projection.blockwise.subspace import DENSITY_BLOCK, DENSITY_DEPTH, KRYLOV_DEPTH
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.foretold import EIGENDECOMPOSITION_FLOPS, NoisySpectrum, SolverWork
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Projection
from scoreshield.projection.solution import Solution

LINEAR_SAFETY = 0.2
"""Share of the asked tolerance at which the blockwise form stops. It converges linearly, with an
error about as large as the residual; the dense one ends far below what was asked."""

FILTER_PRODUCTS = 6
"""Products of a typical step, which refines its subspace once."""


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    """The dual Newton method with full spectra."""
    _refuse_rank(request)
    return nearest_correlation(
        operator,
        tolerance=request.tolerance,
        max_iterations=request.max_iterations,
        progress=request.progress,
    )


def blockwise(problem: BlockwiseProblem[Any]) -> Solution[Any]:
    """The dual Newton method with the positive part of the spectrum, in memory at first in single
    precision."""
    request = problem.request
    _refuse_rank(request)
    tolerance = LINEAR_SAFETY * request.tolerance
    if isinstance(problem.algebra, ArrayPanels):
        return nearest_in_memory(
            problem.operator,
            tolerance=tolerance,
            max_iterations=request.max_iterations,
            progress=problem.watched(tolerance),
        )
    iteration = problem.iteration(tolerance, (NearestState,))
    return nearest_blockwise(problem.operator, problem.algebra, **iteration)


def _refuse_rank(request: ProjectionRequest) -> None:
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but the 'nearest' projection is exact and finds its "
            "own rank; leave rank out, or use method 'aap' for a truncated step"
        )


def foretold_work(spectrum: NoisySpectrum) -> SolverWork:
    """After a first subspace each step filters the positive pairs and a few more, and works on
    panels of those and of all that are kept."""
    n, rank = spectrum.n, spectrum.exact_rank()
    kept = kept_pairs(rank, n)
    filtered = min(n, rank + SPARE_PAIRS)
    block = min(kept, max(filtered, math.ceil(kept / 2)))
    foretold = 104.0 - 20.0 * spectrum.decades + 25.0 * math.log10(n / 4000)
    products = round(min(250.0, max(36.0, foretold)))
    refining = products - DENSITY_DEPTH - KRYLOV_DEPTH - PROBE_DEPTH - 1
    columns = min(DENSITY_BLOCK, n) * DENSITY_DEPTH + KRYLOV_DEPTH * block
    columns += refining * filtered + PROBE_DEPTH * PROBE_BLOCK + rank
    wide = kept + filtered
    cubes = float(min(KRYLOV_DEPTH * block, n)) ** 3
    cubes += products / FILTER_PRODUCTS * (float(wide) ** 3 + 1.5 * float(kept) ** 3)
    return SolverWork(
        rank=rank,
        products=products,
        columns=columns,
        computed_products=0,
        computed_columns=0,
        factor_columns=0,
        steps=550 + 6 * products,
        panel_numbers=10 * n * products * wide,
        panel_flops=round(1.7 * 2.0 * n * products * wide**2),
        driver_flops=round(EIGENDECOMPOSITION_FLOPS * cubes),
    )


METHOD = ProjectionMethod(
    name="nearest",
    summary="exact Frobenius projection (nearest correlation matrix), dual semismooth Newton",
    dense=dense,
    matrices_at_peak=6.1,
    eigendecompositions=7,
    blockwise=BlockwiseForm(
        solve=blockwise,
        width=lambda spectrum: spectrum.exact_width,
        work=foretold_work,
        states=(NearestState,),
    ),
)
