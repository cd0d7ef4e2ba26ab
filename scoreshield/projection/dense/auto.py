"""The estimate with the least risk among shrinkage, the exact projection and the identity matrix.

The risks are Stein's unbiased estimates of ``risk``, computed from σ, n and the noisy spectrum, so
that the choice is post-processing like the rest. ``aap`` is not among the candidates: it is no
function of the spectrum, and no estimate of its risk is known. What was compared, and what was
taken, is among the result's parameters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.certificate import feasibility_certificate
from scoreshield.projection.dense.eigen import full_spectrum, refuse_oversized
from scoreshield.projection.dense.nearest import memory_bytes, nearest_correlation
from scoreshield.projection.dense.shrink import (
    Risks,
    compared_risks,
    eigenvalue_shrinkage,
    spike_model,
)
from scoreshield.projection.method import ProjectionMethod, Request
from scoreshield.projection.operator import (
    DenseOperator,
    FloatArray,
    SymmetricOperator,
    materialise,
)
from scoreshield.projection.result import Plain, Projection, from_factor, squared_row_norms

COMPARED = "shrink, nearest, identity"


def least_risk(operator: SymmetricOperator, request: Request) -> Projection:
    """The projection of G with the least estimated risk, for sizes with a dense spectrum.

    Raises
    ------
    ParameterError
        Without σ, or for n beyond the dense eigensolver.
    """
    sigma = require_noise_level(request)
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    whole = operator if isinstance(operator, DenseOperator) else DenseOperator(noisy)
    chosen, parameters = least_of(_dense_risks(noisy, sigma))
    if chosen == "identity":
        result = identity(operator.n)
    elif chosen == "nearest":
        result = nearest_correlation(
            whole,
            tolerance=request.tolerance,
            max_iterations=request.max_iterations,
            progress=request.progress,
        )
    else:
        result = eigenvalue_shrinkage(whole, sigma=sigma)
    return named_auto(result, products, parameters)


def least_of(risks: Risks) -> tuple[str, dict[str, Plain]]:
    """The candidate with the least risk, and what a manifest says of the comparison."""
    candidates = {"shrink": risks.spiked, "nearest": risks.exact, "identity": risks.identity}
    chosen = min(candidates, key=lambda name: candidates[name])
    return chosen, {"compared": COMPARED, "chosen": chosen, **risks.parameters()}


def named_auto(result: Projection, products: int, parameters: dict[str, Plain]) -> Projection:
    """The chosen projection under the name of this method, with the comparison stated."""
    return replace(
        result,
        method=METHOD.name,
        products=result.products + products,
        parameters={**result.parameters, **parameters},
    )


def identity(n: int) -> Projection:
    """The identity matrix, which tells nothing and errs by what there was to tell."""
    factor = np.zeros((n, 0))
    return from_factor(
        factor,
        method="identity",
        parameters={},
        certificate=feasibility_certificate(factor, 1.0),
    )


def require_noise_level(request: Request) -> float:
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
    solve=least_risk,
    memory_bytes=memory_bytes,
)
