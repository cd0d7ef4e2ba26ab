"""NumPy's .npz files: a zip archive of .npy members, stored or deflated.

A member is read as a stream, because a deflated one cannot be read from the middle. In C order the
stream yields rows. In Fortran order it yields columns, so it is copied to a scratch file first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.archive import check_members
from pipeline.ingest.layouts import (
    column_major_panels,
    fill,
    native,
    row_major_panels,
    write_all,
)
from pipeline.ingest.npy import Header, described, read_header
from pipeline.ingest.public_ids import PART_ROWS, Parts, check_ids_array
from pipeline.ingest.source import ArrayEntry, Source, choose_key, reading
from scoreshield.errors import InputRejected

_SUFFIX = ".npy"
_COPY_BYTES = 2**20


def open_npz(path: Path, key: str | None) -> Source:
    """The chosen matrix of a .npz file, after checking its header against its size."""
    with reading(str(path)), ZipFile(path) as archive:
        members = _members(path, archive)
        chosen = choose_key(path, [_entry(archive, name) for name in members], key)
        name = f"{path}[{chosen}]"
        header = _header(archive, chosen, name)
    return described(name, header, members[chosen], partial(_panels, path, chosen, header))


def npz_ids(path: Path, name: str) -> Parts:
    """The ids in a member: a 1-D array of text or integers."""
    place = f"{path}[{name}]"
    with reading(str(path)), ZipFile(path) as archive:
        choose_key(path, [_entry(archive, key) for key in _members(path, archive)], name)
        header = _header(archive, name, place)
        check_ids_array(place, header.shape, header.dtype)
        if header.dtype.hasobject:
            raise InputRejected(
                f"{place}: found Python objects, which are never unpickled, expected text or "
                "integers. Save the ids with dtype=str."
            )
    with _opened(path, name, place) as stream:
        for start, stop in panels(header.shape[0], PART_ROWS):
            part = np.empty(stop - start, header.dtype)
            fill(stream, place, part)
            yield native(part).tolist()


def _panels(
    path: Path, key: str, header: Header, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    with _opened(path, key, matrix.name) as stream:
        if not header.fortran_order:
            yield from row_major_panels(stream, matrix, rows)
            return
        # A file without a name: nothing of it is left behind, whatever ends this process.
        with TemporaryFile(dir=scratch, buffering=0) as file:
            while data := stream.read(_COPY_BYTES):
                write_all(file, data)
            yield from column_major_panels(file, matrix, 0, rows)


@contextmanager
def _opened(path: Path, key: str, name: str) -> Iterator[BinaryIO]:
    """The member of a key, behind its header."""
    with reading(name), ZipFile(path) as archive, archive.open(key + _SUFFIX) as member:
        stream = cast(BinaryIO, member)
        read_header(stream, name)
        yield stream


def _members(path: Path, archive: ZipFile) -> dict[str, int]:
    """Bytes of each array of an archive, by key."""
    members = archive.infolist()
    check_members(path, members)
    return {
        member.filename.removesuffix(_SUFFIX): member.file_size
        for member in members
        if member.filename.endswith(_SUFFIX)
    }


def _header(archive: ZipFile, key: str, name: str) -> Header:
    with reading(name), archive.open(key + _SUFFIX) as member:
        return read_header(cast(BinaryIO, member), name)


def _entry(archive: ZipFile, key: str) -> ArrayEntry:
    try:
        header = _header(archive, key, key)
    except InputRejected:
        return ArrayEntry(key, None, "unreadable")
    return ArrayEntry(key, header.shape, str(header.dtype))
