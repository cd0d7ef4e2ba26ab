"""``auto``: the estimate with the least risk among shrinkage, exact projection and identity matrix.

The risks are Stein's unbiased estimates of ``risk``, computed from σ, n and the noisy spectrum, so
that the choice is post-processing like the rest. ``aap`` is not among the candidates: it is no
function of the spectrum, and no estimate of its risk is known. What was compared, and what was
taken, is among the result's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.nearest import NearestState
from scoreshield.projection.blockwise.panels import (
    CountedProducts,
    P,
    PanelAlgebra,
    PanelOperator,
)
from scoreshield.projection.blockwise.problem import BlockwiseProblem, Choice, problem_in_memory
from scoreshield.projection.blockwise.subspace import (
    DENSITY_DEPTH,
    KRYLOV_DEPTH,
    factor_of,
    krylov_start,
    refine,
    spectral_density,
)
from scoreshield.projection.certificate import feasibility_certificate
from scoreshield.projection.dense.eigen import full_spectrum, refuse_oversized
from scoreshield.projection.dense.shrink import Risks, compared_risks, spike_model
from scoreshield.projection.foretold import NoisySpectrum, SolverWork, work_on_panels
from scoreshield.projection.methods import nearest, shrink
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import (
    DenseOperator,
    FloatArray,
    SymmetricOperator,
    materialise,
)
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Plain, Projection, squared_row_norms
from scoreshield.projection.solution import Solution, in_memory

COMPARED = "shrink, nearest, identity"

RISK_REFINEMENTS = 2
RISK_DEGREE = 8


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    """The projection of G with the least estimated risk, for sizes with a dense spectrum.

    Raises
    ------
    ParameterError
        Without σ, or for n beyond the dense eigensolver.
    """
    sigma = _noise_level(request)
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    whole = operator if isinstance(operator, DenseOperator) else DenseOperator(noisy)
    chosen, parameters = _least_of(_dense_risks(noisy, sigma))
    candidates: dict[str, Callable[[], Projection]] = {
        "identity": lambda: in_memory(identity(problem_in_memory(operator, request))),
        "nearest": lambda: nearest.dense(whole, request),
        "shrink": lambda: shrink.dense(whole, request),
    }
    result = candidates[chosen]()
    return replace(
        result,
        method=METHOD.name,
        products=result.products + products,
        parameters={**result.parameters, **parameters},
    )


def blockwise(problem: BlockwiseProblem[Any]) -> Solution[Any]:
    """The projection of G with the least estimated risk, by products."""
    sigma = _noise_level(problem.request)

    def decide() -> Choice:
        counted = CountedProducts(problem.operator)
        chosen, parameters = _least_of(estimated_risks(counted, problem.algebra, sigma))
        return {"chosen": chosen, "parameters": parameters, "products": counted.products}

    # An attempt that goes on from a state goes on with the method whose state it is.
    choice = problem.decided(decide)
    solution = CANDIDATES[choice["chosen"]](problem)
    return replace(
        solution,
        method=METHOD.name,
        parameters={**solution.parameters, **choice["parameters"]},
        products=solution.products + choice["products"],
    )


def identity(problem: BlockwiseProblem[Any]) -> Solution[Any]:
    """The identity matrix, which tells nothing and errs by what there was to tell."""
    algebra = problem.algebra
    return Solution(
        factor=algebra.start(0),
        diagonal=np.ones(algebra.n),
        method="identity",
        certificate=feasibility_certificate(np.zeros((algebra.n, 0)), 1.0),
        parameters={},
        history=(),
        products=0,
        converged=True,
    )


CANDIDATES: dict[str, Callable[[BlockwiseProblem[Any]], Solution[Any]]] = {
    "shrink": shrink.blockwise,
    "nearest": nearest.blockwise,
    "identity": identity,
}


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
    rows = factor_of(algebra, pairs.vectors, model.images(pairs.values))
    rest = density.below(pairs.values.size)
    return compared_risks(model, pairs.values, rest, algebra.row_inner(rows, rows))


def foretold_work(spectrum: NoisySpectrum) -> SolverWork:
    """Comparing risks on a subspace of the exact projection's width, then ``shrink``."""
    n = spectrum.n
    width = min(n, math.ceil(1.3 * spectrum.exact_rank()) + 12)
    products = DENSITY_DEPTH + KRYLOV_DEPTH + RISK_REFINEMENTS * RISK_DEGREE
    comparing = work_on_panels(
        spectrum,
        rank=0,
        products=products,
        columns=spectrum.columns(products, width),
        steps=400,
        passes=25,
        largest=KRYLOV_DEPTH * width,
    )
    return comparing + shrink.foretold_work(spectrum)


def _least_of(risks: Risks) -> tuple[str, dict[str, Plain]]:
    """The candidate with the least risk, and what a manifest says of the comparison."""
    candidates = {"shrink": risks.spiked, "nearest": risks.exact, "identity": risks.identity}
    chosen = min(candidates, key=lambda name: candidates[name])
    return chosen, {"compared": COMPARED, "chosen": chosen, **risks.parameters()}


def _noise_level(request: ProjectionRequest) -> float:
    """σ, or ParameterError where it was not given."""
    if request.sigma is None:
        raise ParameterError(
            "method 'auto' compares risks and needs the noise level, and sigma was not given; pass "
            "the σ of the release, or use method 'nearest', which needs none"
        )
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but method 'auto' chooses among methods that find "
            "their own rank; leave rank out"
        )
    return request.sigma


def _dense_risks(noisy: FloatArray, sigma: float) -> Risks:
    n = noisy.shape[0]
    spectrum = full_spectrum(noisy)
    descending = spectrum.values[::-1]
    model = spike_model(descending, n, sigma)
    leading = spectrum.vectors[:, ::-1][:, : model.count]
    factor = leading * np.sqrt(model.images(descending))
    nothing = SpectralDensity(np.empty(0), np.empty(0))
    return compared_risks(model, descending, nothing, squared_row_norms(factor))


METHOD = ProjectionMethod(
    name="auto",
    summary="whichever of shrink, nearest and the identity has the least estimated risk",
    dense=dense,
    matrices_at_peak=nearest.METHOD.matrices_at_peak,
    eigendecompositions=8,
    blockwise=BlockwiseForm(
        solve=blockwise,
        width=lambda spectrum: max(spectrum.exact_width, spectrum.spike_width),
        work=foretold_work,
        states=(*shrink.STATES, NearestState),
    ),
)
