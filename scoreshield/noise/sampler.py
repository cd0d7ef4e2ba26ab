"""Correctly rounded Gaussian noise that is a function of position alone.

The noise array of a release is cut into fixed tiles of 1024 × 1024. Each tile has its own AES-256
key, derived from the release key; sample t of a tile is the t-th 64-bit word of its CTR key
stream. Which worker draws a tile, in which block and for the how-manieth time changes no bit.

A sample is k = round(X/g) for X ~ N(0, σ²): the value a real-valued Gaussian would have after
rounding to the grid g. The word supplies a sign and the leading 63 bits of a uniform number;
float64 decides all but a few samples in a million, and those that lie too near a rounding boundary,
or in the far tail, are decided with more key stream in multiple precision
(:mod:`scoreshield.noise.resolve`).
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from scoreshield.noise.quantile import lower_quantile
from scoreshield.noise.resolve import resolve_magnitude

_Scalar = TypeVar("_Scalar", bound=np.generic)

TILE = 1024
KEY_BYTES = 32
LARGEST_RATIO = 2.0**22
"""Largest σ/g for which the float64 tolerance below was established."""

_VERSION = b"scoreshield noise 1"
_WORD_BYTES = 8
_AES_BLOCK_BYTES = 16
# 32 rows of a tile: 256 KiB an array, so that a piece and its temporaries stay in cache.
_PIECE_ROWS = 32
_ZEROS = memoryview(bytes(_PIECE_ROWS * TILE * _WORD_BYTES))

_SIGN = np.uint64(1 << 63)
_MAGNITUDE = np.uint64((1 << 63) - 1)

# Beyond |z| = 5 the 63-bit uniform is too coarse to place a sample; up to there the float64 value
# of z errs by at most 2^-45.1: 2^-45.6 for the unknown bits of the uniform (2^-65 / φ(5)), 2^-50
# for its conversion and the product with σ/g, and 2^-47 granted to the quantile. The tolerance is
# four times the sum, and sixteen times the error of the quantile.
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
    out = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
    add_tile_noise(out, key, ratio, rows, columns, above_diagonal=above_diagonal)
    return out


def add_tile_noise(
    values: NDArray[np.float64],
    key: bytes,
    ratio: float,
    rows: slice,
    columns: slice,
    *,
    above_diagonal: bool = False,
) -> None:
    """Add to ``values`` (rows, columns), in place, what :func:`tile_noise` returns."""
    for at, k in _pieces(key, ratio, rows, columns, above_diagonal):
        values[at] += k


def add_row_noise(
    values: NDArray[np.float64], keys: Sequence[bytes], ratio: float, row: int, column: int
) -> None:
    """Add to one row of values (k,), in place, the noise of neighbouring tiles.

    What :func:`add_tile_noise` adds tile by tile, with many tiles in one piece: a tile's share of
    one row is too small to be worth a piece of its own.

    Parameters
    ----------
    values : the part of the row that begins at ``column`` of the first tile.
    keys : the keys of the tiles that it crosses, in order.
    ratio : σ/g, at most 2^22.
    row : the row within the tiles.
    """
    _check_ratio(ratio)
    scratch = _Scratch(min(_PIECE_ROWS, len(keys)))
    counter = row * TILE * _WORD_BYTES // _AES_BLOCK_BYTES
    stream = memoryview(scratch.stream)
    for first in range(0, len(keys), _PIECE_ROWS):
        piece = keys[first : first + _PIECE_ROWS]
        for place, key in enumerate(piece):
            _encryptor(key, counter).update_into(
                _ZEROS[: TILE * _WORD_BYTES], stream[place * TILE * _WORD_BYTES :]
            )
        words = np.frombuffer(stream, "<u8", count=len(piece) * TILE).reshape(-1, TILE)
        k = _rounded(words, ratio, scratch, partial(_sample_of_row, piece, row))
        start = first * TILE - column
        within = values[max(start, 0) : start + k.size]
        within += k.reshape(-1)[max(-start, 0) :][: within.size]


def tiles_overlapping(start: int, stop: int) -> list[tuple[int, slice]]:
    """The tiles that cover [start, stop) along one axis, each with its part as a slice of it."""
    return [
        (tile, slice(max(start - tile * TILE, 0), min(stop - tile * TILE, TILE)))
        for tile in range(start // TILE, -(-stop // TILE))
    ]


def _pieces(
    key: bytes, ratio: float, rows: slice, columns: slice, above_diagonal: bool
) -> Iterator[tuple[tuple[slice, slice], NDArray[np.float64]]]:
    """Cache-sized pieces of a tile's rectangle: where each lies in it, and its k.

    A piece is overwritten by the next one.
    """
    _check_ratio(ratio)
    scratch = _Scratch(min(_PIECE_ROWS, rows.stop - rows.start))
    for start in range(rows.start, rows.stop, _PIECE_ROWS):
        stop = min(start + _PIECE_ROWS, rows.stop)
        first = max(columns.start, start + 1) if above_diagonal else columns.start
        if first >= columns.stop:
            break
        words = _row_words(key, start, stop, scratch)[:, first : columns.stop]
        k = _rounded(words, ratio, scratch, partial(_sample_of_tile, key, start, first))
        if above_diagonal:
            # Columns from stop on are above the diagonal for every row of the piece.
            crossed = k[:, : max(stop - first, 0)]
            row, column = np.ogrid[start:stop, first : first + crossed.shape[1]]
            crossed[row >= column] = 0.0
        yield (
            (
                slice(start - rows.start, stop - rows.start),
                slice(first - columns.start, columns.stop - columns.start),
            ),
            k,
        )


class _Scratch:
    """The arrays that a piece of at most ``rows`` tile rows needs, made once for all pieces.

    Where freed memory goes straight back to the operating system, as Dask asks for, making them
    anew for each piece takes as long as drawing the samples.
    """

    def __init__(self, rows: int) -> None:
        size = rows * TILE
        # Ciphers may ask for one block less a byte beyond the end.
        self.stream = bytearray(size * _WORD_BYTES + _AES_BLOCK_BYTES - 1)
        self.value = np.empty(size)
        self.k = np.empty(size)
        self.other = np.empty(size)
        self.doubtful = np.empty(size, dtype=np.bool_)
        self.mask = np.empty(size, dtype=np.bool_)


def _leading(array: NDArray[_Scalar], shape: tuple[int, ...]) -> NDArray[_Scalar]:
    """The first values of a flat array as a contiguous one of that shape."""
    return array[: math.prod(shape)].reshape(shape)


def _row_words(key: bytes, start: int, stop: int, scratch: _Scratch) -> NDArray[np.uint64]:
    """Key stream words (stop − start, 1024) of whole tile rows."""
    counter = start * TILE * _WORD_BYTES // _AES_BLOCK_BYTES
    size = (stop - start) * TILE * _WORD_BYTES
    _encryptor(key, counter).update_into(_ZEROS[:size], scratch.stream)
    return np.frombuffer(scratch.stream, "<u8", count=size // _WORD_BYTES).reshape(-1, TILE)


def _encryptor(key: bytes, counter: int) -> CipherContext:
    mode = modes.CTR(counter.to_bytes(_AES_BLOCK_BYTES, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor()


def _rounded(
    words: NDArray[np.uint64],
    ratio: float,
    scratch: _Scratch,
    sample_at: Callable[[int, int], tuple[bytes, int]],
) -> NDArray[np.float64]:
    """k for each word of a piece; ``sample_at`` gives a place's tile key and index in the tile."""
    value, k = _leading(scratch.value, words.shape), _leading(scratch.k, words.shape)
    other = _leading(scratch.other, words.shape)
    doubtful, mask = _leading(scratch.doubtful, words.shape), _leading(scratch.mask, words.shape)
    bits = other.view(np.uint64)
    np.bitwise_and(words, _MAGNITUDE, out=bits)
    # 63 bits convert faster as a signed number.
    np.copyto(value, bits.view(np.int64))
    value += 0.5
    value *= 2.0**-64
    lower_quantile(value, k, other)
    np.less(value, _FAR_TAIL, out=doubtful)
    value *= ratio
    np.rint(value, out=k)
    value -= k
    np.abs(value, out=value)
    doubtful |= np.greater(value, 0.5 - _TOLERANCE * ratio, out=mask)
    if doubtful.any():
        for i, j in np.argwhere(doubtful):
            key, index = sample_at(int(i), int(j))
            k[i, j] = -_resolved(key, int(words[i, j] & _MAGNITUDE), ratio, index)
    # z came from the lower tail, so it is negative: flip it where the word's sign bit is clear.
    np.invert(words, out=bits)
    bits &= _SIGN
    k_bits = k.view(np.uint64)
    k_bits ^= bits
    return k


def _sample_of_tile(key: bytes, row: int, column: int, i: int, j: int) -> tuple[bytes, int]:
    """Tile key and index of sample (i, j) of a piece that begins at (row, column)."""
    return key, (row + i) * TILE + column + j


def _sample_of_row(keys: Sequence[bytes], row: int, i: int, j: int) -> tuple[bytes, int]:
    """Tile key and index of the j-th sample of one row of the i-th tile."""
    return keys[i], row * TILE + j


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio <= LARGEST_RATIO:
        raise ValueError(f"the ratio of sigma to grid must lie in (0, {LARGEST_RATIO:g}]")


def _resolved(key: bytes, tail: int, ratio: float, index: int) -> int:
    """|k| of sample ``index``, decided with as much further key stream as it takes.

    The further words come from counters no main stream reaches: each sample owns 2^20 of them
    above 2^127.
    """
    counter = (1 << 127) + (index << 20)

    def further_words() -> bytes:
        nonlocal counter
        counter += 1
        return _encryptor(key, counter - 1).update(bytes(_AES_BLOCK_BYTES))

    return resolve_magnitude(tail, ratio, further_words)
