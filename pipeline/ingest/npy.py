"""NumPy's .npy files: C or Fortran order, any byte order, never unpickled.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from pipeline.ingest.layouts import column_major_panels, row_major_panels
from pipeline.ingest.source import Read, Source, check_matrix, reading, refuse_key
from scoreshield.errors import InputRejected

LARGEST_HEADER = 10_000


@dataclass(frozen=True)
class Header:
    """What a .npy header says, and how many bytes it takes itself."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    header_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole file, in Python integers: a forged shape can't wrap around."""
        values = 1
        for length in self.shape:
            values *= int(length)
        return self.header_bytes + values * self.dtype.itemsize


def open_npy(path: Path, key: str | None) -> Source:
    """The matrix in a .npy file, after checking its header against the size of the file."""
    refuse_key(path, key, "a .npy file")
    with reading(str(path)), path.open("rb") as file:
        header = read_header(file, str(path))
    return described(str(path), header, path.stat().st_size, partial(_panels, path, header))


def described(name: str, header: Header, found_bytes: int, read: Read) -> Source:
    """The matrix that a header describes, after checking it against its bytes."""
    shape = check_matrix(name, header.shape, header.dtype)
    check_size(name, header, found_bytes)
    return Source(name, shape, header.dtype, read)


def _panels(
    path: Path, header: Header, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    with reading(matrix.name), path.open("rb", buffering=0) as file:
        if header.fortran_order:
            yield from column_major_panels(file, matrix, header.header_bytes, rows)
        else:
            file.seek(header.header_bytes)
            yield from row_major_panels(file, matrix, rows)


def read_header(stream: BinaryIO, name: str) -> Header:
    """Parse the header at the stream's position; refuse one that is too large before reading it.

    NumPy checks the size only after reading that many bytes, up to 4 GiB.
    """
    magic = stream.read(npy_format.MAGIC_LEN)
    if magic[: len(npy_format.MAGIC_PREFIX)] != npy_format.MAGIC_PREFIX:
        raise InputRejected(
            f"{name}: is not in NumPy's .npy format (it starts with {magic[:6]!r}). Save the "
            "array with numpy.save."
        )
    version = magic[-2:]
    if len(magic) != npy_format.MAGIC_LEN or version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise InputRejected(
            f"{name}: found .npy format version {'.'.join(map(str, version))}, expected 1.0, 2.0 "
            "or 3.0. Save the array with numpy.save."
        )
    length_bytes = stream.read(2 if version == b"\x01\x00" else 4)
    length = int.from_bytes(length_bytes, "little")
    if length > LARGEST_HEADER:
        raise InputRejected(
            f"{name}: found a header of {length} bytes, expected at most {LARGEST_HEADER}. No "
            "matrix of numbers needs that much; the file is damaged or was made to harm."
        )
    header = stream.read(length)
    if len(header) != length:
        raise InputRejected(
            f"{name}: ends inside its header. The file was cut short; copy it again."
        )
    shape, fortran_order, dtype = _parse(header, name)
    return Header(shape, fortran_order, dtype, len(magic) + len(length_bytes) + length)


def check_size(name: str, header: Header, found_bytes: int) -> None:
    """Refuse a file that is shorter or longer than its header says, before anything is read."""
    if found_bytes == header.total_bytes:
        return
    advice = (
        "The file was cut short; copy it again."
        if found_bytes < header.total_bytes
        else "Something follows the array, for instance a second array; save one array a file."
    )
    raise InputRejected(
        f"{name}: found {found_bytes} bytes, expected {header.total_bytes} for shape "
        f"{header.shape} of {header.dtype}. {advice}"
    )


def _parse(header: bytes, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of a header's text.

    The three versions differ in the width of the length and the encoding of field names, which a
    matrix doesn't have; any text of at most 10,000 bytes fits version 1.0.
    """
    with warnings.catch_warnings(), reading(name):
        # NumPy warns about headers that Python 2 wrote, and reads them right.
        warnings.simplefilter("ignore", UserWarning)
        stream = BytesIO(struct.pack("<H", len(header)) + header)
        return npy_format.read_array_header_1_0(stream, max_header_size=LARGEST_HEADER)
