"""Settings of regime ``gram``: the similarities of n records with one another."""

from __future__ import annotations

from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism, calibrated_mechanism, check_dimension
from scoreshield.privacy.sensitivity import (
    FULL_RANGE,
    Adjacency,
    ScoreRange,
    Sensitivity,
    gram_sensitivity,
)


def calibrate_gram(
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | None = None,
    score_range: ScoreRange = FULL_RANGE,
) -> Mechanism:
    """Settings that release the Gram matrix of n unit rows of d numbers under (ε, δ)-DP.

    Raises
    ------
    ParameterError
        n < 2, d out of range, or privacy parameters that cannot be certified.
    """
    if n < 2:
        raise ParameterError(f"a Gram matrix needs at least 2 records, found {n}")
    check_dimension(d)

    def sensitivity(adjacency: Adjacency, grid: float) -> Sensitivity:
        return gram_sensitivity(n, d, adjacency, score_range, grid)

    return calibrated_mechanism(
        "gram", n, d, None, epsilon, delta, adjacency, score_range, sensitivity
    )
