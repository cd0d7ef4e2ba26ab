"""Regime ``gram``: the similarities of the records with one another, n × n."""

from __future__ import annotations

from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.privacy.sensitivity import Adjacency, gram_sensitivity
from scoreshield.regimes.record import UNPROTECTED, Regime
from scoreshield.utility.forecast import forecast_gram


def _holds(mechanism: Mechanism) -> str:
    n = mechanism.n
    return f"the cosine similarities of {n} records with one another ({n} x {n})"


def _shapes(n: int, m: int | None, columns: int) -> dict[str, tuple[int | None, ...]]:
    return {"gram": (n, n), "factor": (n, columns), "diagonal": (n,)}


def _sensitivity_bounds(
    mechanism: Mechanism, adjacency: Adjacency, rounding: float
) -> tuple[float, float]:
    exact = gram_sensitivity(
        mechanism.n, mechanism.d, adjacency, mechanism.score_range, rounding
    ).value
    return exact, exact


GRAM = Regime(
    name="gram",
    arrays=("factor", "gram"),
    published="factor, gram or both",
    asks_queries=False,
    projected=True,
    audited=True,
    states_forecast=True,
    noise=(
        "correctly rounded Gaussian: k = round(X/g) for X ~ N(0, sigma^2), added to exact inner "
        "products of fixed-point rows; one independent draw per released pair, mirrored"
    ),
    unprotected=UNPROTECTED,
    reading=(
        "release.rows(0, 10)           # similarities of the first ten records to all others",
        "indices, values = release.topk(10)",
        "release.to_dask()             # the whole matrix, lazily",
    ),
    forecast=forecast_gram,
    holds=_holds,
    shapes=_shapes,
    sensitivity_bounds=_sensitivity_bounds,
)
