"""Row panels out of raw bytes, for the two layouts in which arrays are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.source import Source
from scoreshield.errors import InputRejected


def row_major_panels(stream: BinaryIO, matrix: Source, rows: int) -> Iterator[NDArray[Any]]:
    """Panels of a C-order matrix whose first byte is the stream's next one."""
    n, d = matrix.shape
    for start, stop in panels(n, rows):
        panel = np.empty((stop - start, d), matrix.dtype)
        fill(stream, matrix.name, panel)
        yield native(panel)


def column_major_panels(
    file: BinaryIO, matrix: Source, offset: int, rows: int
) -> Iterator[NDArray[Any]]:
    """Panels of a Fortran-order matrix that starts ``offset`` bytes into an unbuffered file.

    Each panel is read as d runs, one a column. A memory map would do the same through page
    faults, but keeps every page it touched resident and dies on a file that shrinks meanwhile.
    """
    n, d = matrix.shape
    for start, stop in panels(n, rows):
        columns = np.empty((d, stop - start), matrix.dtype)
        for feature in range(d):
            file.seek(offset + (feature * n + start) * matrix.dtype.itemsize)
            fill(file, matrix.name, columns[feature])
        yield native(columns.T)


def fill(stream: BinaryIO, name: str, array: NDArray[Any]) -> None:
    """Read exactly the bytes of a C-contiguous array."""
    view = array.reshape(-1).view(np.uint8).data
    while view:
        # readinto() is not part of BinaryIO's type, yet every binary stream has it.
        count: int = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise InputRejected(
                f"{name}: the data ended {len(view)} bytes too early. The file was cut short, or "
                "is being written; copy it again."
            )
        view = view[count:]


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of the data to an unbuffered file, which may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def native(panel: NDArray[Any]) -> NDArray[Any]:
    """The same values in the byte order of this machine."""
    return panel.astype(panel.dtype.newbyteorder("="), copy=False)


def regrouped(pieces: Iterator[NDArray[Any]], matrix: Source, rows: int) -> Iterator[NDArray[Any]]:
    """Panels of ``rows`` rows out of pieces of any number of rows, as a reader finds them."""
    left, d = matrix.shape
    panel, filled = np.empty((0, d), matrix.dtype), 0
    for piece in pieces:
        taken = 0
        while taken < piece.shape[0]:
            if filled == panel.shape[0]:
                panel, filled = np.empty((min(rows, left), d), matrix.dtype), 0
                left -= panel.shape[0]
            count = min(panel.shape[0] - filled, piece.shape[0] - taken)
            panel[filled : filled + count] = piece[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == panel.shape[0]:
                yield panel
