"""The Gaussian mechanism on exact inner products: calibrated settings and one noisy block.

A noisy value is g·(round(c/g) + k): c is the exact clean similarity, g a public power of two, and k
the correctly rounded Gaussian of :mod:`scoreshield.noise.sampler`. It is a deterministic function
of round(c/g)·g + X with X ~ N(0, σ²), so the analytic guarantee holds without a floating-point gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.arithmetic.products import FixedRows, products_of
from scoreshield.arithmetic.sparse import LARGEST_SPARSE_DIMENSION
from scoreshield.errors import ParameterError
from scoreshield.noise import sampler as noise
from scoreshield.privacy.calibration import exact_delta_holds, noise_multiplier, smallest_epsilon
from scoreshield.privacy.sensitivity import (
    FULL_RANGE,
    Adjacency,
    ScoreRange,
    Sensitivity,
)

_PRODUCT_BITS = 2 * FRACTION_BITS
# σ/g lies in [2^20, 2^21] before Δ grows by the grid term, which is a share (σ/Δ)√(n−1)/2^20 of Δ
# at most: 0.1 % at ε = 1 and n = 60,000. Coarse enough that about one sample in a million needs
# multiple precision.
_GRID_BITS = 20
# Released values are float32, which ends at 2^128.
_LARGEST_SIGMA = 2.0**100
_MIRROR_STRIP = 64


@dataclass(frozen=True)
class Guarantee:
    """What a release gives for one adjacency: Δ, μ = Δ/σ (rounded up) and ε at the stated δ."""

    adjacency: Adjacency
    sensitivity: Sensitivity
    mu: float
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Mechanism:
    """Everything public that shapes the noise of one release."""

    regime: str
    n: int
    d: int
    m: int | None
    score_range: ScoreRange
    guarantee: Guarantee
    implied: Guarantee
    """The guarantee for replacing one record by any other; equal to ``guarantee`` for `record`."""
    sigma: float
    grid_exponent: int

    @property
    def mirrored(self) -> bool:
        """Whether records are compared with one another, each pair once."""
        return self.m is None

    @property
    def grid(self) -> float:
        """Spacing g of the released values before any storage rounding."""
        return math.ldexp(1.0, self.grid_exponent)

    @property
    def ratio(self) -> float:
        """σ/g, exact because g is a power of two."""
        return math.ldexp(self.sigma, -self.grid_exponent)


def noisy_block(
    mechanism: Mechanism,
    left: FixedRows,
    right: FixedRows,
    row: int,
    column: int,
    release_key: bytes,
    release_id: str,
) -> NDArray[np.float32]:
    """One noisy block (k, l) whose first entry is (row, column) of the released matrix.

    ``left`` (k, d) and ``right`` (l, d) are fixed-point rows. A Gram block either lies above the
    diagonal or sits on it (row == column, left == right); on it the strict upper triangle is
    perturbed and mirrored, and the diagonal is 1. The result depends on position alone.

    Raises
    ------
    ParameterError
        A Gram block reaches below the diagonal: its values would get a second, independent noise.
    """
    out = np.empty((left.shape[0], right.shape[0]), dtype=np.float32)
    on_diagonal = mechanism.mirrored and row == column
    if mechanism.mirrored:
        _check_above_diagonal(out.shape, row, column)
    clean = products_of(left, right, noise.TILE)
    products = np.empty(min(noise.TILE, left.shape[0]) * min(noise.TILE, right.shape[0]))
    for tile_row, rows in noise.tiles_overlapping(row, row + left.shape[0]):
        at_row = _span(tile_row, rows, row)
        for tile_column, columns in noise.tiles_overlapping(column, column + right.shape[0]):
            if on_diagonal and tile_column < tile_row:
                continue
            at_column = _span(tile_column, columns, column)
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            value = products[: shape[0] * shape[1]].reshape(shape)
            clean.tile(at_row, at_column, value)
            round_to_grid(value, mechanism)
            key = noise.tile_key(release_key, release_id, mechanism.regime, tile_row, tile_column)
            noise.add_tile_noise(
                value,
                key,
                mechanism.ratio,
                rows,
                columns,
                above_diagonal=on_diagonal and tile_row == tile_column,
            )
            value *= mechanism.grid
            out[at_row, at_column] = value
    if on_diagonal:
        _mirror_upper_triangle(out)
    return out


def _mirror_upper_triangle(block: NDArray[np.float32]) -> None:
    """Overwrite a square block in place: ones on its diagonal, its upper triangle mirrored below.

    In strips of a few cache lines, because transposing all at once misses the cache at every value.
    """
    for start in range(0, block.shape[0], _MIRROR_STRIP):
        stop = start + _MIRROR_STRIP
        block[stop:, start:stop] = block[start:stop, stop:].T
        corner = block[start:stop, start:stop]
        upper = np.triu(corner, 1)
        np.add(upper, upper.T, out=corner)
    np.fill_diagonal(block, 1.0)


def round_to_grid(products: NDArray[np.float64], mechanism: Mechanism) -> None:
    """Exact products in units of 2^-48 to integers in units of g, clipped to the score range."""
    score_range = mechanism.score_range
    if score_range != FULL_RANGE:
        low = math.ceil(math.ldexp(score_range.low, _PRODUCT_BITS))
        high = math.floor(math.ldexp(score_range.high, _PRODUCT_BITS))
        np.clip(products, low, high, out=products)
    products *= math.ldexp(1.0, -_PRODUCT_BITS - mechanism.grid_exponent)
    np.rint(products, out=products)
    # A clean −0.0 plus a noise of −0.0 would stay −0.0 and tell the sign of the clean value.
    products += 0.0


def _span(tile: int, part: slice, origin: int) -> slice:
    """A tile's part in coordinates relative to the block's own origin."""
    offset = tile * noise.TILE - origin
    return slice(part.start + offset, part.stop + offset)


def calibrated_mechanism(
    regime: str,
    n: int,
    d: int,
    m: int | None,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | None,
    score_range: ScoreRange,
    sensitivity: Callable[[Adjacency, float], Sensitivity],
) -> Mechanism:
    """Settings of a regime whose Δ is ``sensitivity`` of an adjacency and of what the grid rounds.

    Raises
    ------
    ParameterError
        Privacy parameters that cannot be certified.
    """
    adjacency = adjacency or Adjacency("record")
    multiplier = noise_multiplier(epsilon, delta)
    exponent = _grid_exponent(multiplier * sensitivity(adjacency, 0.0).value)
    # Exact products are already multiples of 2^-48; only a coarser grid moves them.
    rounding = math.ldexp(1.0, exponent) if exponent > -_PRODUCT_BITS else 0.0
    claimed = sensitivity(adjacency, rounding)
    sigma = multiplier * claimed.value * (1 + 2.0**-50)
    _check_noise(sigma, exponent, epsilon, adjacency)
    record = sensitivity(Adjacency("record"), rounding)
    guarantee = _guarantee(adjacency, claimed, sigma, delta, epsilon)
    implied = (
        guarantee if adjacency.kind == "record" else _guarantee(Adjacency(), record, sigma, delta)
    )
    return Mechanism(regime, n, d, m, score_range, guarantee, implied, sigma, exponent)


def sufficient_epsilon(mu: float, delta: float) -> float:
    """An ε that a Gaussian mechanism with μ = Δ/σ has at δ, however large μ is.

    The smallest one as far as it is certified. Beyond that μ²/2 + μ√(2 ln 1/δ), at which
    δ(ε) ≤ Φ(μ/2 − ε/μ) = Φ(−√(2 ln 1/δ)) ≤ δ: no longer tight, but such an ε protects nothing.
    """
    try:
        return smallest_epsilon(mu, delta)
    except ParameterError:
        return mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 2.0**-48)


def _guarantee(
    adjacency: Adjacency,
    sensitivity: Sensitivity,
    sigma: float,
    delta: float,
    epsilon: float | None = None,
) -> Guarantee:
    """μ and ε of the σ actually used; a claimed ε is recomputed in multiple precision."""
    mu = sensitivity.value / sigma * (1 + 2.0**-51)
    if epsilon is None:
        epsilon = sufficient_epsilon(mu, delta)
    if not exact_delta_holds(mu, epsilon, delta):
        raise ParameterError(
            f"sigma={sigma:g} does not give epsilon={epsilon:g} at delta={delta:g}; "
            "nothing was released"
        )
    return Guarantee(adjacency, sensitivity, mu, epsilon, delta)


def _grid_exponent(sigma: float) -> int:
    """log2 of g, from σ before rounding is accounted for; g is never finer than the products."""
    return max(math.frexp(sigma)[1] - 1 - _GRID_BITS, -_PRODUCT_BITS)


def _check_noise(sigma: float, exponent: int, epsilon: float, adjacency: Adjacency) -> None:
    if not sigma <= _LARGEST_SIGMA:
        raise ParameterError(
            f"the noise would have sigma={sigma:g}, more than a float32 release can hold "
            f"(at most {_LARGEST_SIGMA:g}); check the radius of adjacency {adjacency}"
        )
    if math.ldexp(sigma, -exponent) > noise.LARGEST_RATIO:
        raise ParameterError(
            f"epsilon={epsilon:g} needs sigma={sigma:g}, most of which would only protect the "
            "rounding of clean values; no signal would survive it. Raise epsilon or delta"
        )


def _check_above_diagonal(shape: tuple[int, ...], row: int, column: int) -> None:
    rows, columns = shape
    on_diagonal = row == column and rows == columns
    if not on_diagonal and row + rows > column:
        raise ParameterError(
            f"a Gram block of {rows} x {columns} at ({row}, {column}) reaches below the diagonal, "
            "where every value mirrors one above it; expected a square block on the diagonal or "
            "one that lies above it"
        )


def check_dimension(d: int) -> None:
    """Raise ParameterError for a number of features that no gallery has."""
    if not 1 <= d <= LARGEST_SPARSE_DIMENSION:
        raise ParameterError(f"records have 1 to {LARGEST_SPARSE_DIMENSION} features, found {d}")
