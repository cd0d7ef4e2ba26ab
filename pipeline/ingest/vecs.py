"""Files of .fvecs, .bvecs and .ivecs: each row is its own length, then that many numbers.

Format: http://corpus-texmex.irisa.fr/ (int32 length, then float32, uint8 or int32 values, all
little-endian).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.layouts import fill, native
from pipeline.ingest.rows import FaultyRows
from pipeline.ingest.source import Source, check_matrix, reading, refuse_key
from scoreshield.errors import InputRejected

TYPES: dict[str, np.dtype[Any]] = {
    ".fvecs": np.dtype("<f4"),
    ".bvecs": np.dtype("u1"),
    ".ivecs": np.dtype("<i4"),
}
_LENGTH = np.dtype("<i4")


def open_vecs(path: Path, key: str | None) -> Source:
    """The matrix of a file; its first row says how long all of them are."""
    refuse_key(path, key, f"a {path.suffix} file")
    name, dtype, size = str(path), TYPES[path.suffix.lower()], path.stat().st_size
    with reading(name), path.open("rb") as file:
        if not size:
            raise InputRejected(f"{name}: found an empty file, expected at least 2 records.")
        d = _length(file)
        check_matrix(name, (1, d), dtype)
        n, rest = divmod(size, _LENGTH.itemsize + d * dtype.itemsize)
        if rest:
            _refuse_lengths(file, name, dtype, d)
    return Source(name, (n, d), dtype, partial(_panels, path))


def _panels(path: Path, matrix: Source, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
    n, d = matrix.shape
    record = np.dtype([("length", _LENGTH), ("values", matrix.dtype, (d,))])
    with reading(matrix.name), path.open("rb", buffering=0) as file:
        for start, stop in panels(n, rows):
            panel = np.empty(stop - start, record)
            fill(file, matrix.name, panel)
            if (panel["length"] != d).any():
                _refuse_lengths(file, matrix.name, matrix.dtype, d)
            yield native(panel["values"])


def _length(file: BinaryIO) -> int:
    """The length that starts a row; -1 where the file ends inside it."""
    content = file.read(_LENGTH.itemsize)
    return int(np.frombuffer(content, _LENGTH)[0]) if len(content) == _LENGTH.itemsize else -1


def _refuse_lengths(file: BinaryIO, name: str, dtype: np.dtype[Any], d: int) -> None:
    """Walk from row to row, counting those of another length, to the end or to where it breaks.

    Raises
    ------
    InputRejected
        Always: the caller has found that the rows don't fit the file.
    """
    faults = FaultyRows(f"{d} numbers, the length of the first row")
    size, position, row = file.seek(0, 2), 0, 0
    while position < size:
        file.seek(position)
        length = _length(file)
        position += _LENGTH.itemsize + length * dtype.itemsize
        if length < 1 or position > size:
            faults.add("a length that the file has no room for", np.ones(1, dtype=bool), row)
            row += 1
            break
        faults.add("another length", np.array([length != d]), row)
        row += 1
    faults.refuse(name, row)
