"""``aap``: the paper's averaged alternating projection."""

from __future__ import annotations

import math
from typing import Any

from scoreshield.projection.blockwise.aap import AapState, ClosingState, aap_blockwise
from scoreshield.projection.blockwise.nearest import NearestState
from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.blockwise.subspace import DENSITY_BLOCK, DENSITY_DEPTH, KRYLOV_DEPTH
from scoreshield.projection.dense.aap import averaged_alternating_projection
from scoreshield.projection.foretold import NoisySpectrum, SolverWork, work_on_panels
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Projection
from scoreshield.projection.solution import Solution


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    """The paper's iteration on the whole matrix."""
    return averaged_alternating_projection(
        operator,
        tolerance=request.tolerance,
        max_iterations=request.max_iterations,
        rank=request.rank,
        progress=request.progress,
    )


def blockwise(problem: BlockwiseProblem[Any]) -> Solution[Any]:
    """A few box steps, and the exact projection of where they end."""
    request = problem.request
    return aap_blockwise(
        problem.operator,
        problem.algebra,
        problem.box_correction,
        rank=request.rank,
        **problem.iteration(request.tolerance, (AapState, ClosingState)),
    )


def widest_panel(spectrum: NoisySpectrum) -> float:
    """Columns of two blocks of a step, at the rank at which its PSD step is cut."""
    rank = max(2.0 * math.sqrt(2.0 * spectrum.n), 1.2 * spectrum.largest_rank)
    return 2.0 * (1.2 * rank + 8)


def foretold_work(spectrum: NoisySpectrum) -> SolverWork:
    """Two box steps of two products each with what the box changes, then an exact projection of
    the factor, whose products are steps on panels."""
    n = spectrum.n
    limit = min(n, math.ceil(max(2.0 * math.sqrt(2.0 * n), 1.05 * spectrum.exact_rank())))
    width = min(n, math.ceil(1.2 * limit) + 8)
    refining = 12
    products = DENSITY_DEPTH + KRYLOV_DEPTH + refining
    columns = DENSITY_BLOCK * DENSITY_DEPTH
    columns += (KRYLOV_DEPTH // 3 + refining) * width
    return work_on_panels(
        spectrum,
        rank=limit,
        products=products,
        columns=columns,
        computed_products=4,
        computed_columns=4 * limit,
        factor_columns=4 * limit,
        steps=1190,
        passes=50,
        largest=KRYLOV_DEPTH // 3 * width,
    )


METHOD = ProjectionMethod(
    name="aap",
    summary="averaged alternating projection between the PSD cone and the unit-diagonal box",
    dense=dense,
    matrices_at_peak=5.0,
    eigendecompositions=90,
    blockwise=BlockwiseForm(
        solve=blockwise,
        width=widest_panel,
        work=foretold_work,
        states=(AapState, ClosingState, NearestState),
        takes_rank=True,
    ),
)
