"""A gallery prepared once and scored many times, as a service does.

Preparing normalises and rounds every record (:mod:`scoreshield.arithmetic.fixedpoint`); a query
then pays for one exact inner product a record and its noise. The values are those of
:func:`scoreshield.mechanisms.gaussian.noisy_block`, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import exact_products, to_fixed, to_integers
from scoreshield.errors import InputRejected
from scoreshield.mechanisms.gaussian import Mechanism, round_to_grid
from scoreshield.noise.sampler import (
    TILE,
    add_row_noise,
    add_tile_noise,
    tile_key,
    tiles_overlapping,
)

# 32 tiles: a panel of inner products of one query takes 256 KiB and stays in cache.
_PANEL = 32 * TILE


class PreparedGallery:
    """The private records of a gallery, ready to be scored against public queries.

    Holds 8·n·d bytes: the integer rows in float64, as the exact inner products need them. Held as
    float32 they would take half of that, and converting them would more than double the time of a
    query.

    Parameters
    ----------
    E : (n, d) real embeddings, one row a record, finite and not zero; normalised here.

    Raises
    ------
    InputRejected
        E is not a matrix of finite non-zero rows.
    """

    def __init__(self, E: NDArray[Any]) -> None:
        self._integers = to_integers(fixed_rows(E, "E"))
        self._integers.flags.writeable = False

    @property
    def n(self) -> int:
        """Number of records."""
        return int(self._integers.shape[0])

    @property
    def d(self) -> int:
        """Number of features of a record."""
        return int(self._integers.shape[1])

    def __repr__(self) -> str:
        return f"PreparedGallery(n={self.n}, d={self.d})"

    def noisy_scores(
        self,
        mechanism: Mechanism,
        queries: NDArray[np.float32],
        release_key: bytes,
        release_id: str,
    ) -> NDArray[np.float32]:
        """Noisy scores (m, n) of fixed-point queries (m, d), not yet clipped.

        Exactly ``noisy_block(mechanism, queries, rows, 0, 0, release_key, release_id)``.
        """
        integers = to_integers(queries)
        out = np.empty((len(queries), self.n), dtype=np.float32)
        for start in range(0, self.n, _PANEL):
            values = exact_products(integers, self._integers[start : start + _PANEL])
            round_to_grid(values, mechanism)
            _add_noise(values, mechanism, start // TILE, release_key, release_id)
            values *= mechanism.grid
            out[:, start : start + _PANEL] = values
        return out


def fixed_rows(values: NDArray[Any], name: str) -> NDArray[np.float32]:
    """The rows of a real matrix, normalised and rounded to fixed point.

    Raises
    ------
    InputRejected
        Not a matrix of real numbers, or a row is zero or not finite.
    """
    values = np.asarray(values)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputRejected(
            f"{name} has shape {values.shape} and type {values.dtype}; "
            "expected a matrix of real numbers, one row a record"
        )
    return to_fixed(values)


def _add_noise(
    values: NDArray[np.float64],
    mechanism: Mechanism,
    first_tile: int,
    release_key: bytes,
    release_id: str,
) -> None:
    """Add each position's noise to values (m, k) that begin with a tile's first column."""

    def key(row: int, column: int) -> bytes:
        return tile_key(release_key, release_id, "scores", row, first_tile + column)

    rows, columns = (tiles_overlapping(0, size) for size in values.shape)
    if len(values) == 1:
        add_row_noise(values[0], [key(0, tile) for tile, _ in columns], mechanism.ratio, 0, 0)
        return
    for row, at_row in rows:
        for column, at_column in columns:
            part = values[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
            add_tile_noise(part, key(row, column), mechanism.ratio, at_row, at_column)
