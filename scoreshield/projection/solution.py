"""What a blockwise projection returns: factor as a panel, everything else as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from scoreshield.projection.blockwise.panels import P
from scoreshield.projection.certificate import Certificate
from scoreshield.projection.operator import FloatArray
from scoreshield.projection.result import Iteration, Plain, Projection, from_factor


@dataclass(frozen=True, eq=False)
class Solution(Generic[P]):
    """A projection X = F·Fᵀ + Diag(d) whose factor may live elsewhere.

    Attributes
    ----------
    factor : F, a panel (n, r), rows of norm at most 1
    diagonal : d = 1 − ‖Fᵢ‖², (n,)
    method, certificate, parameters, history, converged, dual, linear_rate, products : as in
        :class:`~scoreshield.projection.result.Projection`
    """

    factor: P
    diagonal: FloatArray = field(repr=False)
    method: str
    certificate: Certificate
    parameters: Mapping[str, Plain]
    history: Sequence[Iteration]
    products: int
    converged: bool
    dual: FloatArray | None = field(default=None, repr=False)
    linear_rate: float | None = None

    @property
    def rank(self) -> int:
        """r."""
        return self.factor.shape[1]


def in_memory(solution: Solution[npt.NDArray[Any]]) -> Projection:
    """The projection with its factor as a float64 array, exactly feasible by row scaling."""
    return from_factor(
        solution.factor.astype(np.float64, copy=False),
        method=solution.method,
        parameters=solution.parameters,
        certificate=solution.certificate,
        products=solution.products,
        history=solution.history,
        converged=solution.converged,
        dual=solution.dual,
        linear_rate=solution.linear_rate,
    )
