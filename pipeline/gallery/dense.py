"""A gallery of embeddings on disk: n fixed-point unit rows, private to their owner.

Layout: an array ``embeddings`` (n, d) of little-endian float32. Rows are chunked and features never
are, so a panel of rows is a few whole chunks. The fill value is NaN.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.gallery.store import (
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    Gallery,
    chunk_rows,
    create_array,
    create_group,
    faulty_chunks,
    open_group,
    panels,
)
from pipeline.storage.layout import EMBEDDINGS, METADATA
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place
from scoreshield.arithmetic.fixedpoint import FRACTION_BITS, check_fixed
from scoreshield.errors import ScoreShieldError


def create_embeddings(path: Place, n: int, d: int) -> zarr.Array[Any]:
    """Make the group and its empty array ``embeddings`` (n, d) in the layout of this module."""
    chunks = (chunk_rows(n, d), d)
    return create_array(create_group(path), EMBEDDINGS, (n, d), chunks, "<f4", float("nan"))


def open_dense(path: Place, attributes: Mapping[str, Any]) -> Gallery:
    """The gallery of embeddings at ``path`` after checking its layout and its chunks.

    Raises
    ------
    IntegrityFailure
        Its stored parts are missing, cut short, or contradict one another.
    """
    n, d = _check_layout(path, attributes)
    _check_chunks(path, n, d)
    return Gallery(path, n, d, str(attributes["lineage"]), attributes.get("id_width"))


def read_rows(gallery_path: Place, start: int, stop: int) -> NDArray[np.float32]:
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


def dense_digest(gallery: Gallery) -> bytes:
    """SHA-256 of what a gallery of embeddings holds, independent of its chunks.

    Covers the format version, n and d as little-endian 64-bit integers, then the little-endian
    float32 values row by row.
    """
    digest = hashlib.sha256(b"scoreshield gallery")
    digest.update(struct.pack("<3Q", FORMAT_VERSION, gallery.n, gallery.d))
    for start, stop in panels(gallery.n, chunk_rows(gallery.n, gallery.d)):
        digest.update(read_rows(gallery.path, start, stop).astype("<f4", copy=False).data)
    return digest.digest()


def _generation(path: Place) -> tuple[Any, ...]:
    """Changes when the gallery at ``path`` is replaced, so that a stale array is not read on."""
    metadata = path / EMBEDDINGS / METADATA
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
def _opened(path: Place, generation: tuple[Any, ...]) -> zarr.Array[Any]:
    return _embeddings(open_group(path), path)


def _embeddings(group: zarr.Group, path: Place) -> zarr.Array[Any]:
    try:
        array = group[EMBEDDINGS]
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityFailure(
            f"{path}: the gallery's array '{EMBEDDINGS}' is missing or unreadable. "
            "Ingest the source again."
        ) from error
    if not isinstance(array, zarr.Array):
        raise IntegrityFailure(f"{path}: '{EMBEDDINGS}' is a group, expected an array.")
    return array


def _check_layout(path: Place, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """(n, d), where attributes and array metadata are what an ingest of this version writes."""
    group = open_group(path)
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


def _check_chunks(path: Place, n: int, d: int) -> None:
    """Every expected chunk must be stored, at its full size."""
    rows = chunk_rows(n, d)
    expected_bytes = 4 * rows * d + CHECKSUM_BYTES
    keys = [f"{EMBEDDINGS}/c.{row}.0" for row in range(-(-n // rows))]
    wrong, shown = faulty_chunks(path, dict.fromkeys(keys, expected_bytes))
    if wrong:
        raise IntegrityFailure(
            f"{path}: {wrong} of {len(keys)} chunks are missing or cut short ({shown}), "
            f"expected {expected_bytes} bytes each. Ingest the source again, or restore the "
            "gallery from a copy."
        )
