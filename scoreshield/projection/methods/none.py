"""No projection but the box: entries clipped to [−1, 1], diagonal set to 1.

The result is not positive semidefinite in general, hence marked as not feasible: no set of unit
vectors needs to have these cosines.
"""

from __future__ import annotations

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.methods.record import ProjectionMethod
from scoreshield.projection.operator import SymmetricOperator, materialise
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Projection


def clip_only(operator: SymmetricOperator) -> Projection:
    """Clip G to the box [−1, 1] with unit diagonal; ``feasible`` is False."""
    noisy, products = materialise(operator)
    clipped = np.clip(noisy, -1.0, 1.0)
    clipped.flags.writeable = False
    return Projection(
        factor=None,
        diagonal=None,
        method=METHOD.name,
        rank=operator.n,
        iterations=0,
        products=products,
        history=(),
        certificate=None,
        parameters={"step": "entries clipped to [-1, 1]; not positive semidefinite"},
        converged=True,
        feasible=False,
        clipped=clipped,
    )


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    """Clip, once it is clear that nothing else is asked."""
    if request.rank is not None:
        raise ParameterError(
            f"rank {request.rank} was given, but method 'none' makes no eigendecomposition; "
            "leave rank out"
        )
    return clip_only(operator)


METHOD = ProjectionMethod(
    name="none",
    summary="entries clipped to [-1, 1] only; the result is not positive semidefinite",
    dense=dense,
    # The operator's copy and the clipped one.
    matrices_at_peak=2.0,
    eigendecompositions=0,
    makes_factor=False,
)
