"""NumPy's .npz files: a zip archive of .npy members, stored or deflated.

A member is read as a stream, because a deflated one cannot be read from the middle. In C order the
stream yields rows. In Fortran order it yields columns, so it is copied to a scratch file first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from pipeline.ingest.archive import check_members
from pipeline.ingest.layouts import column_major_panels, row_major_panels, write_all
from pipeline.ingest.npy import Header, check_size, read_header
from pipeline.ingest.public_ids import PART_ROWS, Parts, check_ids_array
from pipeline.ingest.source import ArrayEntry, check_matrix, choose_key, reading
from scoreshield.errors import InputRejected

_SUFFIX = ".npy"
_COPY_BYTES = 2**20


@dataclass(frozen=True)
class NpzMember:
    """A matrix in one member of a .npz file."""

    path: Path
    key: str
    name: str
    shape: tuple[int, int]
    header: Header

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.header.dtype

    def panels(self, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        with (
            reading(self.name),
            ZipFile(self.path) as archive,
            archive.open(self.key + _SUFFIX) as member,
        ):
            stream = cast(BinaryIO, member)
            read_header(stream, self.name)
            if self.header.fortran_order:
                yield from self._reordered(stream, rows, scratch)
            else:
                yield from row_major_panels(stream, self.name, self.shape, self.dtype, rows)

    def _reordered(self, stream: BinaryIO, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        # A file without a name: nothing of it is left behind, whatever ends this process.
        with TemporaryFile(dir=scratch, buffering=0) as file:
            while data := stream.read(_COPY_BYTES):
                write_all(file, data)
            yield from column_major_panels(file, self.name, 0, self.shape, self.dtype, rows)


def open_npz(path: Path, key: str | None) -> NpzMember:
    """The chosen matrix of a .npz file, after checking its header against its size."""
    with reading(str(path)), ZipFile(path) as archive:
        check_members(path, archive.infolist())
        members = {
            info.filename.removesuffix(_SUFFIX): info
            for info in archive.infolist()
            if info.filename.endswith(_SUFFIX)
        }
        chosen = choose_key(path, [_entry(archive, name) for name in members], key)
        name = f"{path}[{chosen}]"
        header = _header(archive, chosen, name)
    shape = check_matrix(name, header.shape, header.dtype)
    check_size(name, header, members[chosen].file_size)
    return NpzMember(path, chosen, name, shape, header)


def _header(archive: ZipFile, key: str, name: str) -> Header:
    with reading(name), archive.open(key + _SUFFIX) as member:
        return read_header(cast(BinaryIO, member), name)


def _entry(archive: ZipFile, key: str) -> ArrayEntry:
    try:
        header = _header(archive, key, key)
    except InputRejected:
        return ArrayEntry(key, None, "unreadable")
    return ArrayEntry(key, header.shape, str(header.dtype))


def npz_ids(path: Path, name: str) -> Parts:
    """The ids in a member: a 1-D array of text or integers."""
    place = f"{path}[{name}]"
    with reading(str(path)), ZipFile(path) as archive:
        members = archive.infolist()
        check_members(path, members)
        keys = [
            info.filename.removesuffix(_SUFFIX)
            for info in members
            if info.filename.endswith(_SUFFIX)
        ]
        choose_key(path, [_entry(archive, key) for key in keys], name)
        header = _header(archive, name, place)
        check_ids_array(place, header.shape, header.dtype)
        if header.dtype.hasobject:
            raise InputRejected(
                f"{place}: found Python objects, which are never unpickled, expected text or "
                "integers. Save the ids with dtype=str."
            )
    with reading(place), ZipFile(path) as archive, archive.open(name + _SUFFIX) as member:
        stream = cast(BinaryIO, member)
        read_header(stream, place)
        for panel in row_major_panels(stream, place, (header.shape[0], 1), header.dtype, PART_ROWS):
            yield panel[:, 0].tolist()
