"""What one changed record can do to a release: adjacency to L2 sensitivity Δ, rounded up.

Δ is always that of the vector which receives independent noise. For a Gram release this is the
strict upper triangle: the diagonal is 1 by definition and the lower triangle mirrors the upper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import rounding_radius
from scoreshield.errors import ParameterError

AdjacencyKind = Literal["record", "shift", "output"]
_ROUND_UP = 1 + 2.0**-48


@dataclass(frozen=True)
class Adjacency:
    """What "one record changed" means.

    ``record``: one embedding is replaced by any other. ``shift``: one embedding moves by at most
    ``radius`` in Euclidean distance. ``output``: the released similarities themselves move by at
    most ``radius`` in Frobenius norm.
    """

    kind: AdjacencyKind = "record"
    radius: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(AdjacencyKind):
            raise ParameterError(
                f"adjacency must be 'record', 'shift' or 'output', found {self.kind!r}"
            )
        if self.kind == "record":
            if self.radius is not None:
                raise ParameterError("adjacency 'record' takes no radius: any record may replace")
        elif self.radius is None or not (math.isfinite(self.radius) and self.radius > 0):
            raise ParameterError(
                f"adjacency {self.kind!r} needs a positive radius, found "
                f"{'none' if self.radius is None else repr(self.radius)}"
            )
        elif self.kind == "shift" and self.radius > 2:
            raise ParameterError(
                f"two unit embeddings are at most 2 apart, so a shift radius of {self.radius:g} "
                "is adjacency 'record'"
            )

    @property
    def reach(self) -> float:
        """The radius, or infinity where any record may replace another."""
        return math.inf if self.radius is None else self.radius

    def __str__(self) -> str:
        return self.kind if self.radius is None else f"{self.kind} (radius {self.radius!r})"


@dataclass(frozen=True)
class ScoreRange:
    """A public promise that every similarity lies in [low, high], enforced before the noise."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (-1 <= self.low < self.high <= 1):
            raise ParameterError(
                f"score_range must satisfy -1 <= low < high <= 1, found [{self.low}, {self.high}]"
            )

    @property
    def width(self) -> float:
        """Largest change of one clipped similarity, rounded up."""
        return min(2.0, (self.high - self.low) * _ROUND_UP)


FULL_RANGE = ScoreRange(-1.0, 1.0)


@dataclass(frozen=True)
class Sensitivity:
    """An L2 sensitivity Δ and how it came about, in words a manifest can carry."""

    value: float
    derivation: str


def gram_sensitivity(
    n: int, d: int, adjacency: Adjacency, score_range: ScoreRange, grid: float
) -> Sensitivity:
    """Δ of the strict upper triangle of an n × n Gram matrix of d-dimensional unit rows.

    One record takes part in n − 1 entries. ``grid`` is the spacing g to which clean entries are
    rounded where that is coarser than the exact products (0 where it isn't): two clean values that
    are c apart are at most c + g apart after rounding.
    """
    root, shown = math.sqrt(n - 1), f"sqrt({n} - 1)"
    width = score_range.width
    if adjacency.kind == "output":
        return _output_sensitivity(adjacency, 1 / math.sqrt(2), "tau/sqrt(2) on the upper triangle")
    reach, words = _reach(adjacency, d)
    if adjacency.kind == "record" or width < reach:
        reach, words = width, f"score range width {width:g}"
    return Sensitivity(
        _rounded_up((reach + grid) * root),
        f"one record changes {n} - 1 entries by at most {reach:.9g} ({words})"
        f"{_grid_words(grid)}: ({reach:.9g} + {grid:.3g}) {shown}",
    )


def scores_sensitivity(
    queries: NDArray[np.float32], adjacency: Adjacency, score_range: ScoreRange, grid: float
) -> Sensitivity:
    """Δ of the scores of m public fixed-point queries (m, d) against the gallery, joint.

    A record that moves by v moves its m scores by Q v, hence by at most ‖Q‖₂‖v‖; clipping bounds
    each of them by the range's width as well.
    """
    m, d = queries.shape
    if adjacency.kind == "output":
        return _output_sensitivity(adjacency, 1.0, "tau on the m x n scores")
    reach, words = _reach(adjacency, d)
    norm = spectral_norm_bound(queries)
    spectral, clipped = reach * norm, score_range.width * math.sqrt(m)
    if clipped < spectral:
        reach_words = f"score range width {score_range.width:g} times sqrt({m})"
    else:
        reach_words = f"{reach:.9g} ({words}) times ||Q||_2 = {norm:.9g}"
    rounding = grid * math.sqrt(m)
    return Sensitivity(
        _rounded_up(min(spectral, clipped) + rounding),
        f"one record changes its {m} scores by at most {reach_words}{_grid_words(grid)}: "
        f"{min(spectral, clipped):.9g} + {rounding:.3g}",
    )


def spectral_norm_bound(queries: NDArray[np.float32]) -> float:
    """Upper bound on ‖Q‖₂ of unit rows (m, d); at most √m, and 1 for one query.

    The largest eigenvalue of the smaller of QQᵀ and QᵀQ carries a backward error of a few
    dimensions times the unit roundoff times its own size, which is added.
    """
    m, d = queries.shape
    values = queries.astype(np.float64)
    small = values @ values.T if m <= d else values.T @ values
    largest = float(np.linalg.eigvalsh(small)[-1])
    bound = math.sqrt(max(largest, 0.0) + 64 * max(m, d) * 2.0**-53 * m)
    if math.isnan(bound):
        raise ParameterError("the spectral norm of the queries could not be computed")
    return min(bound, math.sqrt(m) * _ROUND_UP if m > 1 else 1.0)


def _reach(adjacency: Adjacency, d: int) -> tuple[float, str]:
    """How far a record moves, in fixed point where it is shifted; and why."""
    if adjacency.kind == "record":
        return 2.0, "two unit rows are at most 2 apart"
    rounding = 2 * rounding_radius(d)
    return adjacency.reach + rounding, f"radius {adjacency.reach:g} + rounding {rounding:.3g}"


def _output_sensitivity(adjacency: Adjacency, factor: float, words: str) -> Sensitivity:
    """Δ where the adjacency bounds the released matrix itself, after any rounding."""
    return Sensitivity(_rounded_up(adjacency.reach * factor), f"{words}, tau = {adjacency.reach:g}")


def _grid_words(grid: float) -> str:
    return f", and rounding to the grid adds at most {grid:.3g}" if grid else ""


def _rounded_up(value: float) -> float:
    """The few operations behind each Δ err by less than 2^-48 relative."""
    if not (math.isfinite(value) and value > 0):
        raise ParameterError(f"a sensitivity must be positive and finite, found {value!r}")
    return value * _ROUND_UP
