"""The blockwise forms of the registered methods, with their panels as arrays in memory.

What makes them fit a larger matrix than the dense forms do is that they need products only; what
makes them blockwise on a cluster is another home of the panels, under the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.aap import aap_blockwise
from scoreshield.projection.blockwise.box_correction import BoxCorrection
from scoreshield.projection.blockwise.panels import (
    ArrayPanels,
    CountedProducts,
    P,
    PanelAlgebra,
    PanelOperator,
    Term,
)
from scoreshield.projection.blockwise.shrink import shrink_blockwise
from scoreshield.projection.blockwise.subspace import krylov_start, refine, spectral_density
from scoreshield.projection.dense.auto import identity, least_of, named_auto, require_noise_level
from scoreshield.projection.dense.shrink import Risks, compared_risks, spike_model
from scoreshield.projection.dense.single_precision import nearest_in_memory
from scoreshield.projection.method import Request
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.result import Projection
from scoreshield.projection.solution import in_memory

LINEAR_SAFETY = 0.2
"""Share of the asked tolerance at which ``nearest`` stops. Its blockwise form converges linearly,
with an error about as large as the residual; the dense one ends far below what was asked."""

RISK_REFINEMENTS = 2
RISK_DEGREE = 8


def alternating_projection(operator: SymmetricOperator, request: Request) -> Projection:
    """``aap``."""
    solution = aap_blockwise(
        operator,
        ArrayPanels(operator.n),
        BoxCorrection,
        tolerance=request.tolerance,
        max_iterations=request.max_iterations,
        rank=request.rank,
        progress=request.progress,
    )
    return in_memory(solution)


def exact_projection(operator: SymmetricOperator, request: Request) -> Projection:
    """``nearest``."""
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but the 'nearest' projection is exact and finds its "
            "own rank; leave rank out, or use method 'aap' for a truncated step"
        )
    solution = nearest_in_memory(
        operator,
        tolerance=LINEAR_SAFETY * request.tolerance,
        max_iterations=request.max_iterations,
        progress=request.progress,
    )
    return in_memory(solution)


def shrinkage(operator: SymmetricOperator, request: Request) -> Projection:
    """``shrink``."""
    if request.sigma is None:
        raise ParameterError(
            "method 'shrink' needs the noise level, and sigma was not given; pass the σ of the "
            "release, or use method 'nearest', which needs none"
        )
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but the blockwise 'shrink' finds the number of its "
            "spikes; leave rank out"
        )
    solution = shrink_blockwise(
        operator,
        ArrayPanels(operator.n),
        sigma=request.sigma,
        tolerance=request.tolerance,
        max_iterations=request.max_iterations,
        progress=request.progress,
    )
    return in_memory(solution)


def least_risk(operator: SymmetricOperator, request: Request) -> Projection:
    """``auto``."""
    sigma = require_noise_level(request)
    counted = CountedProducts(operator)
    chosen, parameters = least_of(estimated_risks(counted, ArrayPanels(operator.n), sigma))
    if chosen == "identity":
        result = identity(operator.n)
    elif chosen == "nearest":
        result = exact_projection(operator, request)
    else:
        result = shrinkage(operator, replace(request, rank=None))
    return named_auto(result, counted.products, parameters)


def estimated_risks(operator: PanelOperator[P], algebra: PanelAlgebra[P], sigma: float) -> Risks:
    """Risk estimates of what ``auto`` compares, by products.

    The eigenvalues that the exact projection keeps are found one by one, those below enter by
    their spectral density.
    """
    n, zero = algebra.n, np.zeros(algebra.n)
    density = spectral_density(operator, algebra)
    expected = density.mass_above(-density.shift_for_trace(float(n)))
    width = math.ceil(1.3 * expected) + 12
    pairs, density = krylov_start(operator, algebra, zero, n if 2 * width >= n else width)
    for _ in range(RISK_REFINEMENTS):
        pairs = refine(operator, algebra, pairs, zero, RISK_DEGREE)
    model = spike_model(pairs.values, n, sigma)
    weights = np.zeros((pairs.values.size, model.count))
    weights[np.arange(model.count), np.arange(model.count)] = np.sqrt(model.images(pairs.values))
    rows = algebra.combine([Term(pairs.vectors, weights)])
    rest = density.below(pairs.values.size)
    return compared_risks(model, pairs.values, rest, algebra.row_inner(rows, rows))


BLOCKWISE: dict[str, Callable[[SymmetricOperator, Request], Projection]] = {
    "aap": alternating_projection,
    "auto": least_risk,
    "nearest": exact_projection,
    "shrink": shrinkage,
}
