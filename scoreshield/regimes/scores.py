"""Regime ``scores``: those of m public queries with the n records."""

from __future__ import annotations

import math

from scoreshield.arithmetic.fixedpoint import rounding_radius
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.privacy.sensitivity import Adjacency
from scoreshield.regimes.record import UNPROTECTED, Regime
from scoreshield.utility.forecast import forecast_scores


def _holds(mechanism: Mechanism) -> str:
    return f"the cosine scores of {mechanism.m} public queries against {mechanism.n} records"


def _shapes(n: int, m: int | None, columns: int) -> dict[str, tuple[int | None, ...]]:
    return {"scores": (m, n)}


def _sensitivity_bounds(
    mechanism: Mechanism, adjacency: Adjacency, rounding: float
) -> tuple[float, float]:
    """Δ of m unit queries of d features, whichever they are: m/min(m, d) ≤ ‖Q‖₂² ≤ m.

    The squares of the singular values of Q add up to m, and there are at most min(m, d) of them.
    """
    m, d = mechanism.m, mechanism.d
    if m is None:
        raise ParameterError("a release of scores states no number of queries m")
    if adjacency.kind == "output":
        return adjacency.reach, adjacency.reach
    reach = 2.0 if adjacency.kind == "record" else adjacency.reach + 2 * rounding_radius(d)
    shortest = max(0.0, 1 - 2 * rounding_radius(d))
    clipped, share = mechanism.score_range.width * math.sqrt(m), rounding * math.sqrt(m)
    least = shortest * math.sqrt(m / min(m, d))
    return min(reach * least, clipped) + share, min(reach * math.sqrt(m), clipped) + share


SCORES = Regime(
    name="scores",
    arrays=("scores",),
    published="[scores]",
    asks_queries=True,
    projected=False,
    audited=False,
    states_forecast=False,
    noise=(
        "correctly rounded Gaussian: k = round(X/g) for X ~ N(0, sigma^2), added to exact inner "
        "products of fixed-point rows; one independent draw per released score"
    ),
    unprotected=f"{UNPROTECTED}, and so are the queries",
    reading=(
        "release.rows(0, 1)            # scores of the first query with all records",
        "indices, values = release.topk(10)  # per query",
        "release.to_dask()             # all scores (queries x records), lazily",
    ),
    forecast=forecast_scores,
    holds=_holds,
    shapes=_shapes,
    sensitivity_bounds=_sensitivity_bounds,
)
