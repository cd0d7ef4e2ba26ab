"""Ids from a source into the gallery: checked one by one, counted, and written in two passes.

How wide the array has to be is known only after the last id, so they wait in a scratch file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np

from pipeline.gallery.store import create_ids, panels
from pipeline.ingest.rows import FaultyRows
from pipeline.storage.ids import Distinct, encode, faults
from pipeline.storage.place import Place
from scoreshield.errors import InputRejected

_EXPECTED = "distinct ids of printable text, at most 256 bytes"
_WIDEST_CELL = 4096
PART_ROWS = 4096

Parts = Iterator[Sequence[Any]]
"""Successive ids of a source, as the library that reads it gives them."""


def write_public_ids(gallery: Place, parts: Parts, name: str, n: int, scratch: Path) -> int:
    """Write the ids of n records into a gallery that is being made; returns their width.

    ``scratch`` is a private directory for the ids that wait.

    Raises
    ------
    InputRejected
        Not one distinct printable id a record; counted, and the first rows named.
    """
    # A file without a name: nothing of it is left behind, whatever ends this process.
    with TemporaryFile(dir=scratch) as file:
        width = _collect(parts, name, n, file)
        file.seek(0)
        array = create_ids(gallery, n, width)
        for start, stop in panels(n, array.chunks[0]):
            lines = islice(file, stop - start)
            array[start:stop, :] = encode([line[:-1].decode() for line in lines], width)
    return width


def check_ids_array(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array that holds no ids: expected is one text or integer a record."""
    if len(shape) != 1 or dtype.kind not in "OSTUiu" or dtype.itemsize > _WIDEST_CELL:
        raise InputRejected(
            f"{name}: found a {len(shape)}-D array of {dtype} for ids, expected a 1-D array of "
            "text or integers, one id a record."
        )


def sliced(array: Any, rows: int, chunk: int) -> Parts:
    """The ids of a 1-D array that is read by slices, whole chunks at a time."""
    for start, stop in panels(rows, max(chunk, PART_ROWS)):
        yield np.asarray(array[start:stop]).tolist()


def _collect(parts: Parts, name: str, n: int, file: BinaryIO) -> int:
    """Check ids and put them into the file, one a line; returns the bytes of the longest."""
    found, distinct = FaultyRows(_EXPECTED), Distinct()
    width, start = 1, 0
    for part in parts:
        ids = [_text(value) for value in part]
        start += len(ids)
        if start > n:
            break
        for kind, rows in faults(ids).items():
            found.add(kind, rows, start - len(ids))
        distinct.add(ids)
        if not found.count:
            width = max(width, *(len(text.encode()) for text in ids))
            file.write("".join(f"{text}\n" for text in ids).encode())
    if start != n:
        raise InputRejected(
            f"{name}: found {'more' if start > n else start} ids for {n} records, expected one id "
            "a record."
        )
    found.add("an id that an earlier row has", distinct.repeated(), 0)
    found.refuse(name, n)
    return width


def _text(value: Any) -> str:
    """An id as text; empty, which is refused, for what is neither text nor a whole number."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ""
