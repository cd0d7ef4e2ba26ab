"""Row panels of an array that is stored in chunks, each of which is decoded whole.

Where chunks are taller than a panel, reading panel by panel would decode each of them again and
again, so the values are laid out column by column in a scratch file first, one chunk at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.layouts import column_major_panels, native, write_all
from pipeline.ingest.source import Source
from scoreshield.errors import InputRejected

LARGEST_CHUNK_BYTES = 2**31 - 1
"""Common codecs hold no more in one chunk; what claims more was not written by them."""


def check_chunks(name: str, chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse chunks that are too large to be decoded in memory, before one of them is.

    Raises
    ------
    InputRejected
        One chunk takes 2 GiB or more.
    """
    size = math.prod(int(side) for side in chunks) * dtype.itemsize
    if size > LARGEST_CHUNK_BYTES:
        raise InputRejected(
            f"{name}: found chunks of shape {chunks}, {size} bytes each, expected less than 2 GiB: "
            "a chunk is decoded whole, in memory. Store the array in smaller chunks."
        )


def chunked_panels(
    array: Any, matrix: Source, chunks: tuple[int, int] | None, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    """Panels of anything that slices as ``array[start:stop, first:last]``.

    ``chunks`` are None where any rows can be read alone. ``scratch`` is a directory for the file
    of tall chunks.
    """
    if chunks is not None and chunks[0] > rows:
        yield from _reordered(array, matrix, chunks, rows, scratch)
        return
    n, d = matrix.shape
    for start, stop in panels(n, rows):
        yield native(np.asarray(array[start:stop, 0:d]))


def _reordered(
    array: Any, matrix: Source, chunks: tuple[int, int], rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    n, d = matrix.shape
    # A file without a name: nothing of it is left behind, whatever ends this process.
    with TemporaryFile(dir=scratch, buffering=0) as file:
        tall, wide = chunks
        for start, stop in panels(n, tall):
            for first, last in panels(d, wide):
                block = np.asarray(array[start:stop, first:last], dtype=matrix.dtype)
                _write_columns(file, block, start, first, n)
        yield from column_major_panels(file, matrix, 0, rows)


def _write_columns(file: BinaryIO, block: NDArray[Any], start: int, first: int, n: int) -> None:
    for feature in range(block.shape[1]):
        column = np.ascontiguousarray(block[:, feature])
        file.seek(((first + feature) * n + start) * block.dtype.itemsize)
        write_all(file, column.view(np.uint8).data)
