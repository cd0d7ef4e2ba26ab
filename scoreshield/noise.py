"""Correctly rounded Gaussian noise that is a function of position alone.

The noise array of a release is cut into fixed tiles of 1024 × 1024. Each tile has its own AES-256
key, derived from the release key; sample t of a tile is the t-th 64-bit word of its CTR key
stream. Which worker draws a tile, in which block and for the how-manieth time changes no bit.

A sample is k = round(X/g) for X ~ N(0, σ²): the value a real-valued Gaussian would have after
rounding to the grid g. The word supplies a sign and the leading 63 bits of a uniform number;
float64 decides all but a few samples in a million, and those that lie too near a rounding boundary,
or in the far tail, are decided with more key stream in multiple precision
(:mod:`scoreshield.resolve`).
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from scoreshield.resolve import resolve_magnitude

TILE = 1024
KEY_BYTES = 32
LARGEST_RATIO = 2.0**22
"""Largest σ/g for which the float64 tolerance below was established."""

_VERSION = b"scoreshield noise 1"
_WORD_BYTES = 8
_AES_BLOCK_BYTES = 16
# 32 rows of a tile: 256 KiB an array, so that a piece and its temporaries stay in cache.
_PIECE_ROWS = 32

_SIGN = np.uint64(1 << 63)
_MAGNITUDE = np.uint64((1 << 63) - 1)

# Beyond |z| = 5 the 63-bit uniform is too coarse to place a sample; up to there the float64 value
# of z errs by at most 2^-45.4: 2^-45.6 for the unknown bits of the uniform (2^-65 / φ(5)), 2^-50
# for its conversion and the product with σ/g, and 2^-48.7 measured for ndtri itself. The tolerance
# is five times the sum, and more than fifty times the error of ndtri.
_FAR_TAIL = -5.0
_TOLERANCE = 2.0**-43


def tile_key(release_key: bytes, release_id: str, array: str, row: int, column: int) -> bytes:
    """AES-256 key of one tile: HMAC-SHA-256 of (version, release, array, tile row, tile column)."""
    if len(release_key) != KEY_BYTES:
        raise ValueError(f"a release key has {KEY_BYTES} bytes")
    message = b"".join(
        len(field).to_bytes(8, "big") + field
        for field in (
            _VERSION,
            release_id.encode(),
            array.encode(),
            row.to_bytes(8, "big"),
            column.to_bytes(8, "big"),
        )
    )
    return hmac.new(release_key, message, hashlib.sha256).digest()


def tile_noise(
    key: bytes, ratio: float, rows: slice, columns: slice, *, above_diagonal: bool = False
) -> NDArray[np.float64]:
    """Noise integers k of a rectangle of one tile, as exact float64 integers.

    Parameters
    ----------
    key : the tile's key.
    ratio : σ/g, at most 2^22.
    rows, columns : the rectangle within the tile, as slices of [0, 1024].
    above_diagonal : draw only the tile's strict upper triangle; the rest is 0.

    Returns
    -------
    (rows, columns) float64.
    """
    if not 0 < ratio <= LARGEST_RATIO:
        raise ValueError(f"the ratio of sigma to grid must lie in (0, {LARGEST_RATIO:g}]")
    out = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
    for start in range(rows.start, rows.stop, _PIECE_ROWS):
        stop = min(start + _PIECE_ROWS, rows.stop)
        first = max(columns.start, start + 1) if above_diagonal else columns.start
        if first >= columns.stop:
            break
        words = _row_words(key, start, stop)[:, first : columns.stop]
        piece = out[start - rows.start : stop - rows.start, first - columns.start :]
        piece[...] = _rounded_gaussians(key, words, ratio, start, first)
    if above_diagonal:
        below = np.arange(rows.start, rows.stop)[:, None] >= np.arange(columns.start, columns.stop)
        out[below] = 0.0
    return out


def tiles_overlapping(start: int, stop: int) -> list[tuple[int, slice]]:
    """The tiles that cover [start, stop) along one axis, each with its part as a slice of it."""
    return [
        (tile, slice(max(start - tile * TILE, 0), min(stop - tile * TILE, TILE)))
        for tile in range(start // TILE, -(-stop // TILE))
    ]


def _row_words(key: bytes, start: int, stop: int) -> NDArray[np.uint64]:
    """Key stream words (stop − start, 1024) of whole tile rows."""
    counter = start * TILE * _WORD_BYTES // _AES_BLOCK_BYTES
    size = (stop - start) * TILE * _WORD_BYTES
    return np.frombuffer(_key_stream(key, counter, size), "<u8").reshape(-1, TILE)


def _key_stream(key: bytes, counter: int, size: int) -> bytes:
    mode = modes.CTR(counter.to_bytes(_AES_BLOCK_BYTES, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor().update(bytes(size))


def _rounded_gaussians(
    key: bytes, words: NDArray[np.uint64], ratio: float, row: int, column: int
) -> NDArray[np.float64]:
    """k for each word of a piece whose first sample sits at (row, column) of its tile."""
    tails = words & _MAGNITUDE
    value = tails.astype(np.float64)
    value += 0.5
    value *= 2.0**-64
    ndtri(value, out=value)
    far = value < _FAR_TAIL
    value *= ratio
    k = np.rint(value)
    value -= k
    np.abs(value, out=value)
    far |= value > 0.5 - _TOLERANCE * ratio
    if far.any():
        for i, j in np.argwhere(far):
            index = (row + int(i)) * TILE + column + int(j)
            k[i, j] = -_resolved(key, int(tails[i, j]), ratio, index)
    # z came from the lower tail, so it is negative: flip it where the word's sign bit is clear.
    k_bits = k.view(np.uint64)
    k_bits ^= ~words & _SIGN
    return k


def _resolved(key: bytes, tail: int, ratio: float, index: int) -> int:
    """|k| of sample ``index``, decided with as much further key stream as it takes.

    The further words come from counters no main stream reaches: each sample owns 2^20 of them
    above 2^127.
    """
    counter = (1 << 127) + (index << 20)

    def further_words() -> bytes:
        nonlocal counter
        counter += 1
        return _key_stream(key, counter - 1, _AES_BLOCK_BYTES)

    return resolve_magnitude(tail, ratio, further_words)
