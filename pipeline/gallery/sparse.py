"""A gallery of interactions on disk: sparse fixed-point rows, private to their owner.

Layout: a Zarr v3 group whose attributes say ``form: sparse``, with the rows in compressed form (as
SciPy's CSR) in one-dimensional little-endian arrays:

- ``pointers`` (n + 1) int64: row i has the entries ``pointers[i]`` to ``pointers[i + 1]``.
- ``columns`` (entries) int32, increasing within a row.
- ``integers`` (entries) int32, not zero, in units of 2^-24.
- ``column_of_feature`` (d) int32: features are numbered in the order of their ids, columns by how
  many records they have, most first. Products gather at few columns, which then lie together.
- ``record_ids.bytes``, ``feature_ids.bytes`` uint8 and ``record_ids.ends``, ``feature_ids.ends``
  int64: the source's ids in UTF-8, one after the other, and where each ends.

A row without entries is a substituted one. Chunks are of one size.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.gallery.store import (
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    Gallery,
    create_array,
    faulty_chunks,
    open_group,
    panels,
)
from pipeline.plan.memory import SparsePanels
from pipeline.storage.place import Place
from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.arithmetic.sparse import SparseRows, check_fixed_sparse
from scoreshield.errors import ScoreShieldError
from scoreshield.manifest.interactions import RecordKind

FORM = "sparse"
POINTERS, COLUMNS, INTEGERS, ORDER = "pointers", "columns", "integers", "column_of_feature"
CHUNK_ENTRIES = 2**18
_DIGEST_ENTRIES = 2**22
_DTYPES = {
    POINTERS: "<i8",
    COLUMNS: "<i4",
    INTEGERS: "<i4",
    ORDER: "<i4",
    "record_ids.bytes": "|u1",
    "record_ids.ends": "<i8",
    "feature_ids.bytes": "|u1",
    "feature_ids.ends": "<i8",
}
_FILLS = {"|u1": 0, "<i4": -(2**31), "<i8": -1}
"""What a chunk reads as that was lost since its gallery was opened: outside 0 to n or d, and as an
integer longer than one, so that reading refuses it. A small rating may be -1."""
IdsOf = Literal["record_ids", "feature_ids"]


@dataclass
class EntryWriter:
    """Appends entries to the arrays of a new gallery, in whole chunks; rows in their order."""

    group: zarr.Group
    written: int = 0

    def __post_init__(self) -> None:
        self._waiting: dict[str, list[NDArray[np.int32]]] = {COLUMNS: [], INTEGERS: []}
        self._count = 0
        for name in self._waiting:
            _create(self.group, name, 0)

    def append(self, columns: NDArray[np.int32], integers: NDArray[np.int32]) -> None:
        """Add the entries of the next rows."""
        self._waiting[COLUMNS].append(columns)
        self._waiting[INTEGERS].append(integers)
        self._count += len(columns)
        if self._count >= CHUNK_ENTRIES:
            self._flush(self._count - self._count % CHUNK_ENTRIES)

    def finish(self) -> int:
        """Write what is left; returns the number of entries."""
        self._flush(self._count)
        return self.written

    def _flush(self, count: int) -> None:
        for name, waiting in self._waiting.items():
            values = np.concatenate([*waiting, np.empty(0, np.int32)])
            array = _array(self.group, name)
            array.resize((self.written + count,))
            array[self.written : self.written + count] = values[:count]
            self._waiting[name] = [values[count:]]
        self.written += count
        self._count -= count


def write_array(group: zarr.Group, name: str, values: NDArray[Any]) -> None:
    """Make one array of a gallery with its values."""
    _create(group, name, len(values))[:] = values


def write_source_ids(group: zarr.Group, name: IdsOf, ids: Sequence[str]) -> None:
    """Keep the source's ids beside the rows or the features that they name."""
    encoded = [one.encode() for one in ids]
    write_array(group, f"{name}.bytes", np.frombuffer(b"".join(encoded), dtype=np.uint8))
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    write_array(group, f"{name}.ends", ends)


def open_sparse(path: Place, attributes: Mapping[str, Any]) -> Gallery:
    """The sparse gallery at ``path`` after checking its layout and that every chunk is there.

    Raises
    ------
    IntegrityFailure
        Its stored parts are missing, cut short, or contradict one another.
    """
    group = open_group(path)
    lengths = _expected_lengths(group, path, attributes)
    _check_layout(group, path, attributes, lengths)
    _check_chunks(path, lengths)
    kind: RecordKind = attributes["record_kind"]
    n, d, lineage = attributes["n"], attributes["d"], str(attributes["lineage"])
    width: int | None = attributes.get("id_width")
    return Gallery(path, n, d, lineage, width, sparse=True, record_kind=kind)


def row_pointers(path: Place) -> NDArray[np.int64]:
    """Where each row's entries start (n + 1,): what the cost of a release depends on.

    Raises
    ------
    IntegrityFailure
        They can't be read or do not grow from 0 to the number of entries.
    """
    group = open_group(path)
    pointers = _read(group, path, POINTERS, slice(None)).astype(np.int64)
    entries = _array(group, COLUMNS).shape[0]
    if pointers[0] != 0 or pointers[-1] != entries or (np.diff(pointers) < 0).any():
        raise _damaged(path, f"'{POINTERS}' does not grow from 0 to {entries}")
    return pointers


def panels_of(gallery: Gallery) -> SparsePanels | None:
    """What panels of a sparse gallery cost in memory; None for embeddings, whose size says it."""
    return SparsePanels(gallery.d, row_pointers(gallery.path)) if gallery.sparse else None


def read_sparse(path: Place, start: int, stop: int) -> SparseRows:
    """Rows ``start`` to ``stop``, checked to be canonical fixed-point rows of norm at most one.

    Raises
    ------
    IntegrityFailure
        A chunk fails its checksum or is missing, or a row is not what ingest writes.
    """
    group = open_group(path)
    n, d = (int(str(group.attrs[name])) for name in ("n", "d"))
    if not 0 <= start <= stop <= n:
        raise IndexError(f"rows {start} to {stop} asked for, the gallery has {n} rows")
    pointers = _read(group, path, POINTERS, slice(start, stop + 1)).astype(np.int64)
    entries = _array(group, COLUMNS).shape[0]
    if pointers[0] < 0 or pointers[-1] > entries or (np.diff(pointers) < 0).any():
        raise _damaged(path, f"the pointers of rows {start} to {stop - 1} do not grow")
    held = slice(int(pointers[0]), int(pointers[-1]))
    rows = SparseRows(
        pointers - pointers[0],
        _read(group, path, COLUMNS, held).astype(np.int32, copy=False),
        _read(group, path, INTEGERS, held).astype(np.int32, copy=False),
        d,
    )
    try:
        check_fixed_sparse(rows)
    except ScoreShieldError as error:
        raise _damaged(path, f"rows {start} to {stop - 1}: {error}") from None
    return rows


def column_of_feature(path: Place) -> NDArray[np.int32]:
    """The column (d,) in which each feature is stored, a permutation.

    Raises
    ------
    IntegrityFailure
        It can't be read, or is none.
    """
    order = _read(open_group(path), path, ORDER, slice(None)).astype(np.int32, copy=False)
    found = np.zeros(len(order), dtype=bool)
    inside = (order >= 0) & (order < len(order))
    found[order[inside]] = True
    if not found.all():
        raise _damaged(path, f"'{ORDER}' is no permutation")
    return order


def source_ids(path: Place, name: IdsOf) -> list[str]:
    """The source's ids of the records or the features, in their order; private.

    Raises
    ------
    IntegrityFailure
        They can't be read.
    """
    group = open_group(path)
    text = _read(group, path, f"{name}.bytes", slice(None)).tobytes()
    ends = _read(group, path, f"{name}.ends", slice(None)).tolist()
    try:
        return [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
    except UnicodeDecodeError:
        raise _damaged(path, f"'{name}' holds no text") from None


def sparse_digest(gallery: Gallery) -> bytes:
    """SHA-256 of what a sparse gallery holds, independent of its chunks.

    Covers the format version, n and d as little-endian 64-bit integers, then the pointers, columns,
    integers and the order of the columns, each as stored. A dense gallery of the same rows has
    another digest.
    """
    digest = hashlib.sha256(b"scoreshield sparse gallery")
    digest.update(struct.pack("<3Q", FORMAT_VERSION, gallery.n, gallery.d))
    group = open_group(gallery.path)
    for name in (POINTERS, COLUMNS, INTEGERS, ORDER):
        for start, stop in panels(_array(group, name).shape[0], _DIGEST_ENTRIES):
            values = _read(group, gallery.path, name, slice(start, stop))
            digest.update(values.astype(_DTYPES[name], copy=False).data)
    return digest.digest()


def _create(group: zarr.Group, name: str, length: int) -> zarr.Array[Any]:
    dtype = _DTYPES[name]
    return create_array(group, name, (length,), (CHUNK_ENTRIES,), dtype, _FILLS[dtype])


def _array(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise KeyError(name)
    return array


def _read(group: zarr.Group, path: Place, name: str, part: slice) -> NDArray[Any]:
    """Part of an array; the words of a checksum's error quote private bytes and go no further."""
    try:
        return np.ascontiguousarray(_array(group, name)[part])
    except (ValueError, OSError, KeyError, TypeError):
        raise _damaged(path, f"'{name}' can't be read") from None


def _damaged(path: Place, reason: str) -> IntegrityFailure:
    return IntegrityFailure(
        f"{path}: the gallery is not what ingest wrote ({reason}). Ingest the source again, or "
        "restore the gallery from a copy."
    )


def _expected_lengths(
    group: zarr.Group, path: Place, attributes: Mapping[str, Any]
) -> dict[str, int]:
    """Length of each array, from the attributes; the ids' text is as long as the array says."""
    sizes = [attributes.get(name) for name in ("n", "d", "entries")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise _damaged(path, "n, d or entries is missing from its attributes")
    n, d, entries = (int(size) for size in sizes if size is not None)
    lengths = {POINTERS: n + 1, COLUMNS: entries, INTEGERS: entries, ORDER: d}
    for name, count in (("record_ids", n), ("feature_ids", d)):
        lengths[f"{name}.ends"] = count
        try:
            lengths[f"{name}.bytes"] = _array(group, f"{name}.bytes").shape[0]
        except (KeyError, ValueError, TypeError):
            raise _damaged(path, f"'{name}.bytes' is missing or unreadable") from None
    return lengths


def _check_layout(
    group: zarr.Group, path: Place, attributes: Mapping[str, Any], lengths: Mapping[str, int]
) -> None:
    wrong = [
        f"{name} is {attributes.get(name)!r}"
        for name, accepted in (
            ("fraction_bits", (FRACTION_BITS,)),
            ("record_kind", ("item", "user")),
        )
        if attributes.get(name) not in accepted
    ]
    if not attributes.get("lineage"):
        wrong.append("lineage is missing")
    for name, length in lengths.items():
        try:
            array = _array(group, name)
        except (KeyError, ValueError, TypeError):
            wrong.append(f"array '{name}' is missing or unreadable")
            continue
        found = (tuple(array.shape), tuple(array.chunks), array.dtype.str)
        expected = ((length,), (CHUNK_ENTRIES,), _DTYPES[name])
        if found != expected:
            wrong.append(f"array '{name}' is {found}, expected {expected}")
    if wrong:
        raise _damaged(path, "its metadata was changed: " + "; ".join(wrong))


def _check_chunks(path: Place, lengths: Mapping[str, int]) -> None:
    """Every expected chunk must be stored, at its full size."""
    expected = {
        f"{name}/c.{chunk}": CHUNK_ENTRIES * np.dtype(_DTYPES[name]).itemsize + CHECKSUM_BYTES
        for name, length in lengths.items()
        for chunk in range(-(-length // CHUNK_ENTRIES))
    }
    wrong, shown = faulty_chunks(path, expected)
    if wrong:
        raise _damaged(path, f"{wrong} of {len(expected)} chunks are missing or cut short: {shown}")
