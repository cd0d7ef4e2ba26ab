"""What every format offers to ingest, and the refusals that all formats share."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import LARGEST_DIMENSION
from scoreshield.errors import InputRejected

_REFUSED_KINDS = {
    "b": "booleans",
    "c": "complex numbers",
    "M": "dates",
    "m": "time differences",
    "O": "Python objects",
    "S": "text",
    "T": "text",
    "U": "text",
    "V": "structured or raw bytes",
}
_LISTED_ARRAYS = 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


Read = Callable[["Source", int, Path], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class Source:
    """A real matrix (n, d) that is read once, from the first row to the last.

    Attributes
    ----------
    name : path of the matrix; the key of an array within a file follows in brackets.
    shape : (n, d).
    dtype : type of the stored values, an integer or a float of at most 64 bits.
    read : what :meth:`panels` calls with this matrix, the rows of a panel and ``scratch``.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    read: Read

    def panels(self, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        """Successive panels of ``rows`` rows (the last may be shorter), native byte order.

        ``scratch`` is a directory for formats that have to reorder values on disk because their
        layout doesn't yield rows. Raises InputRejected where the stored bytes can't be read.
        """
        return self.read(self, rows, scratch)


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a file that may hold several."""

    key: str
    shape: tuple[int, ...] | None
    dtype: str

    def __str__(self) -> str:
        shape = f"shape {self.shape}, " if self.shape else ""
        return f"{self.key} ({shape}{self.dtype})"


Choice = Callable[[Path, Sequence[ArrayEntry], str | None], str]
"""Picks a key as :func:`choose_key` does."""


def choose_key(path: Path, entries: Sequence[ArrayEntry], key: str | None) -> str:
    """The key asked for, or the only one there is.

    Raises
    ------
    InputRejected
        No array, several arrays and no key, or an unknown key; the message lists what is there.
    """
    keys = [entry.key for entry in entries]
    if key in keys:
        return key
    # The matrices first: one of them is what the caller is looking for.
    ordered = sorted(entries, key=lambda entry: len(entry.shape or ()) != 2)
    listed = "; ".join(str(entry) for entry in ordered[:_LISTED_ARRAYS])
    if len(entries) > _LISTED_ARRAYS:
        listed += f"; and {len(entries) - _LISTED_ARRAYS} more"
    if key is not None:
        raise InputRejected(f"{path}: holds no array '{key}'. It holds: {listed or 'no array'}.")
    if not keys:
        raise InputRejected(f"{path}: holds no array, expected a 2-D array of numbers.")
    if len(keys) > 1 and all(len(entry.shape or (0, 0)) != 2 for entry in entries):
        raise InputRejected(
            f"{path}: holds {len(keys)} arrays, none of them 2-D, expected a 2-D array of numbers "
            f"with one embedding a row. It holds: {listed}."
        )
    if len(keys) > 1:
        raise InputRejected(
            f"{path}: holds {len(keys)} arrays, expected one or a key that chooses one. "
            "Name the key of the embeddings (--key, --column or --member of ingest; key: or "
            "queries_key: in a configuration). "
            f"It holds: {listed}."
        )
    return keys[0]


def check_matrix(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, int]:
    """Shape (n, d) of a matrix of embeddings.

    Raises
    ------
    InputRejected
        Not real numbers of at most 64 bits, not 2-D, no or too many features.
    """
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        found = _REFUSED_KINDS.get(dtype.kind, "numbers wider than 64 bits")
        raise InputRejected(
            f"{name}: found dtype {dtype} ({found}), expected integers, or floats of 16, 32 or "
            "64 bits. Convert the array first."
        )
    if len(shape) != 2:
        raise InputRejected(
            f"{name}: found a {len(shape)}-D array of shape {shape}, expected a 2-D array with "
            "one embedding a row. Reshape it first."
        )
    n, d = int(shape[0]), int(shape[1])
    if n < 0:
        raise InputRejected(f"{name}: found {n} rows, which no file has; its header is damaged.")
    if not 1 <= d <= LARGEST_DIMENSION:
        raise InputRejected(
            f"{name}: found {d} features a row, expected 1 to {LARGEST_DIMENSION}. "
            "Rows are records and columns are features; transpose the array if it is the other "
            "way round."
        )
    return n, d


def check_records(source: Source) -> Source:
    """The source, if it has enough rows to be a gallery.

    Raises
    ------
    InputRejected
        Fewer than two rows.
    """
    n = source.shape[0]
    if n < 2:
        raise InputRejected(
            f"{source.name}: found {n} rows, expected at least 2 records to compare."
        )
    return source


def refuse_key(path: Path, key: str | None, kind: str) -> None:
    """Refuse a key of a kind of file that holds one array without a name.

    Raises
    ------
    InputRejected
        There is a key.
    """
    if key is not None:
        raise InputRejected(
            f"{path}: holds no array '{key}'; {kind} holds one array without a name. "
            "Leave the key out."
        )


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what foreign bytes make a reader raise into a refusal that says where."""
    try:
        yield
    except InputRejected:
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:  # the scratch disk is full: not the source's fault
            raise
        raise _unreadable(name, error) from error
    except (
        ArithmeticError,
        BadZipFile,
        EOFError,
        LookupError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        TokenError,
        TypeError,
        ValueError,
        zlib.error,
    ) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputRejected:
    # A parser's own words may quote the file, which is private.
    reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return InputRejected(
        f"{name}: could not be read{reason}. The file may be damaged or "
        "of another kind; check it with the program that wrote it."
    )
