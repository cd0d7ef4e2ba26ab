"""The gallery on disk: n fixed-point unit rows in a Zarr v3 group, private to its owner.

Layout: a group whose attributes say what it is, and an array ``embeddings`` (n, d) of
little-endian float32. Rows are chunked and features never are, so a panel of rows is a few whole
chunks. Each chunk carries a crc32c checksum; embeddings don't compress, so nothing else touches
the bytes. A missing chunk would silently read as the fill value, hence: the fill value is NaN, all
chunks are written, and opening a gallery compares the expected chunks with the stored ones. Where
ids were declared public, an array ``ids`` (n, w) of uint8 holds them (:mod:`pipeline.storage.ids`).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
import zarr.codecs
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.storage import ids
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import place_of, resolved, stored_files, zarr_store
from scoreshield.arithmetic.fixedpoint import FRACTION_BITS, check_fixed
from scoreshield.errors import InputRejected, ScoreShieldError
from scoreshield.manifest.interactions import RecordKind

FORMAT_VERSION = 1
MARKER = "scoreshield_gallery"
ARRAY_NAME = "embeddings"
CHUNK_BYTES = 4 * 2**20
_CHECKSUM_BYTES = 4
_SHOWN_CHUNKS = 5

Location = str | os.PathLike[str] | ObjectPath
"""A path or a URL."""


@dataclass(frozen=True)
class Gallery:
    """A complete gallery: where it is, its size, and whose budget its releases draw on.

    Attributes
    ----------
    path : absolute path of the Zarr group, symbolic links resolved, or its URL.
    n : number of records.
    d : number of features of a record.
    lineage : 32 hexadecimal digits made at ingest; the ledger keeps one budget a lineage.
    id_width : bytes of a stored id; None where no ids were declared public.
    sparse : whether its rows are stored as in :mod:`pipeline.gallery.sparse`.
    record_kind : what a record of interactions is; None for embeddings.
    """

    path: str
    n: int
    d: int
    lineage: str
    id_width: int | None = None
    sparse: bool = False
    record_kind: RecordKind | None = None


def chunk_rows(n: int, d: int) -> int:
    """Rows of one stored chunk: about 4 MiB of float32, at least one row, never more than n."""
    return max(1, min(n, CHUNK_BYTES // (4 * d)))


def create_group(path: str) -> zarr.Group:
    """The group of a gallery that is being made, which may hold ids already."""
    return zarr.open_group(_store(path, read_only=False), mode="a", zarr_format=3)


def create_embeddings(path: str, n: int, d: int) -> zarr.Array[Any]:
    """Make the group and its empty array ``embeddings`` (n, d) in the layout of this module."""
    group = create_group(path)
    return group.create_array(
        ARRAY_NAME,
        shape=(n, d),
        chunks=(chunk_rows(n, d), d),
        dtype="float32",
        filters=None,
        serializer=zarr.codecs.BytesCodec(endian="little"),
        compressors=[zarr.codecs.Crc32cCodec()],
        fill_value=float("nan"),
        # A dot keeps all chunks in one directory instead of one directory a chunk.
        chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )


def create_ids(path: str, n: int, width: int) -> zarr.Array[Any]:
    """Make the empty array ``ids`` (n, width) of a gallery whose ids are public."""
    group = create_group(path)
    return group.create_array(
        ids.ARRAY_NAME,
        shape=(n, width),
        chunks=(chunk_rows(n, width), width),
        dtype="uint8",
        filters=None,
        compressors=[zarr.codecs.Crc32cCodec()],
        # Reads as an id without text, which no record has.
        fill_value=0,
        chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )


def describe(
    path: str,
    *,
    lineage: str,
    source_kind: str,
    zero_rows: str,
    substituted: int,
    id_width: int | None = None,
) -> None:
    """Write the group's attributes: the last step of an ingest, which makes it a gallery."""
    group = zarr.open_group(_store(path, read_only=False), mode="r+")
    n, d = _embeddings(group, path).shape
    group.attrs.update(
        {
            MARKER: FORMAT_VERSION,
            "lineage": lineage,
            "fraction_bits": FRACTION_BITS,
            "n": n,
            "d": d,
            "zero_rows": zero_rows,
            "substituted": substituted,
            "source_kind": source_kind,
            **({} if id_width is None else {"id_width": id_width}),
        }
    )


def adopt_lineage(gallery: Gallery, lineage: str) -> Gallery:
    """Let a gallery belong to another lineage, from now on and for everyone who opens it."""
    zarr.open_group(_store(gallery.path, read_only=False), mode="r+").attrs["lineage"] = lineage
    return replace(gallery, lineage=lineage)


def is_gallery(path: Location) -> bool:
    """Whether a gallery of any format version is at ``path`` (complete or not)."""
    return _attributes(str(path)) is not None


def stored_lineage(path: Location) -> str | None:
    """Lineage of the gallery at ``path``, None when no gallery is there."""
    attributes = _attributes(str(path))
    return None if attributes is None else str(attributes.get("lineage", "")) or None


def open_gallery(path: Location) -> Gallery:
    """Open the gallery at ``path`` after checking its layout and that every chunk is there.

    The values are not read: their checksums are checked as they are read.

    Raises
    ------
    InputRejected
        There is nothing at ``path``, or something that is not a gallery of this version.
    IntegrityFailure
        It is a gallery whose stored parts are missing, cut short, or contradict one another.
    """
    place = resolved(path)
    location = str(place)
    attributes = _attributes(location)
    if attributes is None:
        found = "something else" if place.exists() else "nothing"
        raise InputRejected(
            f"{path}: found {found}, expected a gallery. Make one with "
            f"'scoreshield ingest SOURCE {path}'."
        )
    if attributes[MARKER] != FORMAT_VERSION:
        raise InputRejected(
            f"{path}: found a gallery of format version {attributes[MARKER]!r}, expected "
            f"{FORMAT_VERSION}. Ingest its source again with this version of ScoreShield."
        )
    if "form" in attributes:
        from pipeline.gallery.sparse import open_sparse

        return open_sparse(location, attributes)
    n, d = _check_layout(location, attributes)
    _check_chunks(location, n, d)
    return Gallery(location, n, d, str(attributes["lineage"]), attributes.get("id_width"))


def read_rows(gallery_path: str, start: int, stop: int) -> NDArray[np.float32]:
    """Rows ``start`` to ``stop`` (k, d), checked to be fixed-point rows of norm at most one.

    The opened array is kept in the process, so a worker calls this once a panel at the cost of
    reading the chunks alone.

    Raises
    ------
    IntegrityFailure
        A chunk fails its checksum or is missing, or a row is not a fixed-point unit row.
    """
    array = _opened(gallery_path, _generation(gallery_path))
    n = array.shape[0]
    if not 0 <= start <= stop <= n:
        raise IndexError(f"rows {start} to {stop} asked for, the gallery has {n} rows")
    try:
        rows = np.ascontiguousarray(array[start:stop, :], dtype=np.float32)
        check_fixed(rows)
    except (ValueError, OSError) as error:
        # A checksum's error quotes bytes of private rows, so it goes no further.
        reason = str(error) if isinstance(error, ScoreShieldError) else "a chunk is damaged"
        raise IntegrityFailure(
            f"{gallery_path}: rows {start} to {stop - 1} are not what ingest wrote ({reason}). "
            "Ingest the source again, or restore the gallery from a copy."
        ) from None
    return rows


def read_ids(gallery: Gallery, start: int, stop: int) -> NDArray[np.uint8]:
    """Stored ids ``start`` to ``stop`` (k, id_width) of a gallery that has ids, checked.

    Raises
    ------
    IntegrityFailure
        They can't be read, or are not what ingest writes.
    """
    try:
        array = zarr.open_group(_store(gallery.path, read_only=True), mode="r")[ids.ARRAY_NAME]
        stored = np.asarray(array[start:stop, :], dtype=np.uint8)  # type: ignore[index]
        fine = stored.shape == (stop - start, gallery.id_width)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        fine = False
    if not fine or any(rows.any() for rows in ids.faults(ids.decode(stored)).values()):
        raise IntegrityFailure(
            f"{gallery.path}: the ids of rows {start} to {stop - 1} are not what ingest wrote. "
            "Ingest the source again, or restore the gallery from a copy."
        )
    return stored


def content_digest(gallery: Gallery) -> bytes:
    """SHA-256 of what the gallery holds, independent of its chunks.

    Covers the format version, n and d as little-endian 64-bit integers, then the little-endian
    float32 values row by row; not the ids. A sparse gallery has a digest of its own kind
    (:func:`pipeline.gallery.sparse.sparse_digest`). Private: a public digest would let anyone test
    a guessed gallery.
    """
    if gallery.sparse:
        from pipeline.gallery.sparse import sparse_digest

        return sparse_digest(gallery)
    digest = hashlib.sha256(b"scoreshield gallery")
    digest.update(struct.pack("<3Q", FORMAT_VERSION, gallery.n, gallery.d))
    for start, stop in panels(gallery.n, chunk_rows(gallery.n, gallery.d)):
        digest.update(read_rows(gallery.path, start, stop).astype("<f4", copy=False).data)
    return digest.digest()


def open_group(path: str, *, writable: bool = False) -> zarr.Group:
    """The Zarr group of the gallery at ``path``."""
    store = _store(path, read_only=not writable)
    return zarr.open_group(store, mode="r+" if writable else "r", use_consolidated=False)


def panels(n: int, rows: int) -> Iterator[tuple[int, int]]:
    """Successive (start, stop) of at most ``rows`` rows that cover 0 to n."""
    for start in range(0, n, rows):
        yield start, min(start + rows, n)


def _store(path: str, *, read_only: bool) -> Any:
    """The Zarr store at ``path``, which may be a URL."""
    return zarr_store(place_of(path), read_only=read_only)


def _generation(path: str) -> tuple[Any, ...]:
    """Changes when the gallery at ``path`` is replaced, so that a stale array is not read on."""
    metadata = place_of(path) / ARRAY_NAME / "zarr.json"
    try:
        if isinstance(metadata, ObjectPath):
            return metadata.stamp()
        status = os.stat(metadata)
    except OSError as error:
        raise IntegrityFailure(
            f"{path}: the gallery is gone ({error.strerror}). Restore it, or ingest it again."
        ) from error
    return status.st_ino, status.st_mtime_ns


@lru_cache(maxsize=8)
def _opened(path: str, generation: tuple[Any, ...]) -> zarr.Array[Any]:
    return _embeddings(zarr.open_group(_store(path, read_only=True), mode="r"), path)


def _attributes(path: str) -> Mapping[str, Any] | None:
    """The group's attributes when it carries the gallery marker."""
    try:
        attributes = zarr.open_group(_store(path, read_only=True), mode="r").attrs.asdict()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return attributes if MARKER in attributes else None


def _embeddings(group: zarr.Group, path: str) -> zarr.Array[Any]:
    try:
        array = group[ARRAY_NAME]
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityFailure(
            f"{path}: the gallery's array '{ARRAY_NAME}' is missing or unreadable. "
            "Ingest the source again."
        ) from error
    if not isinstance(array, zarr.Array):
        raise IntegrityFailure(f"{path}: '{ARRAY_NAME}' is a group, expected an array.")
    return array


def _check_layout(path: str, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """(n, d), where attributes and array metadata are what an ingest of this version writes."""
    group = zarr.open_group(_store(path, read_only=True), mode="r")
    array = _embeddings(group, path)
    wrong = [
        f"{name} is {found!r}, expected {expected!r}"
        for name, found, expected in (
            ("shape", tuple(array.shape), (attributes.get("n"), attributes.get("d"))),
            ("dtype", array.dtype.str, "<f4"),
            ("fraction_bits", attributes.get("fraction_bits"), FRACTION_BITS),
        )
        if found != expected
    ]
    if not wrong:
        n, d = array.shape
        if tuple(array.chunks) != (chunk_rows(n, d), d):
            wrong.append(f"chunks are {array.chunks}, expected {(chunk_rows(n, d), d)}")
    if not attributes.get("lineage"):
        wrong.append("lineage is missing")
    if wrong:
        raise IntegrityFailure(
            f"{path}: the gallery's metadata was changed after ingest ({'; '.join(wrong)}). "
            "Ingest the source again."
        )
    return n, d


def _check_chunks(path: str, n: int, d: int) -> None:
    """Every expected chunk must be stored, at its full size."""
    rows = chunk_rows(n, d)
    expected_bytes = 4 * rows * d + _CHECKSUM_BYTES
    sizes = stored_files(place_of(path) / ARRAY_NAME)
    keys = [f"c.{row}.0" for row in range(-(-n // rows))]
    wrong = [
        f"{ARRAY_NAME}/{key} is missing"
        if key not in sizes
        else f"{ARRAY_NAME}/{key} has {sizes[key]} bytes"
        for key in keys
        if sizes.get(key) != expected_bytes
    ]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN_CHUNKS]) + (", ..." if len(wrong) > _SHOWN_CHUNKS else "")
        raise IntegrityFailure(
            f"{path}: {len(wrong)} of {len(keys)} chunks are missing or cut short ({shown}), "
            f"expected {expected_bytes} bytes each. Ingest the source again, or restore the "
            "gallery from a copy."
        )
