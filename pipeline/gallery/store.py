"""What every gallery on disk is: a private Zarr v3 group, whose attributes come last.

Each chunk of its arrays carries a crc32c checksum; rows don't compress, so nothing else touches the
bytes. A missing chunk would silently read as the fill value, hence: the fill value is none that the
array may hold, all chunks are written, and opening compares the expected chunks with the stored
ones. Where ids were declared public, an array ``ids`` (n, w) of uint8 holds them
(:mod:`pipeline.storage.ids`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
import zarr.codecs
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.storage import ids
from pipeline.storage.layout import GALLERY_MARKER, IDS
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, place_of, stored_files, zarr_store
from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.manifest.interactions import RecordKind

FORMAT_VERSION = 1
CHUNK_BYTES = 4 * 2**20
CHECKSUM_BYTES = 4
_SHOWN_CHUNKS = 5

Location = str | os.PathLike[str] | ObjectPath
"""A path or a URL."""


@dataclass(frozen=True)
class Gallery:
    """A complete gallery: where it is, its size, and whose budget its releases draw on.

    Attributes
    ----------
    path : place of the Zarr group, absolute, symbolic links resolved.
    n : number of records.
    d : number of features of a record.
    lineage : 32 hexadecimal digits made at ingest; the ledger keeps one budget a lineage.
    id_width : bytes of a stored id; None where no ids were declared public.
    sparse : whether its rows are stored as in :mod:`pipeline.gallery.sparse`.
    record_kind : what a record of interactions is; None for embeddings.
    """

    path: Place
    n: int
    d: int
    lineage: str
    id_width: int | None = None
    sparse: bool = False
    record_kind: RecordKind | None = None


def chunk_rows(n: int, d: int) -> int:
    """Rows of one stored chunk: about 4 MiB of float32, at least one row, never more than n."""
    return max(1, min(n, CHUNK_BYTES // (4 * d)))


def open_group(path: Place, *, writable: bool = False) -> zarr.Group:
    """The Zarr group of the gallery at ``path``."""
    store = zarr_store(path, read_only=not writable)
    return zarr.open_group(store, mode="r+" if writable else "r", use_consolidated=False)


def create_group(path: Place) -> zarr.Group:
    """The group of a gallery that is being made, which may hold ids already."""
    return zarr.open_group(zarr_store(path, read_only=False), mode="a", zarr_format=3)


def create_array(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    fill_value: float,
) -> zarr.Array[Any]:
    """Make one empty array of a gallery, little-endian."""
    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        filters=None,
        serializer=zarr.codecs.BytesCodec(
            endian="little" if np.dtype(dtype).itemsize > 1 else None
        ),
        compressors=[zarr.codecs.Crc32cCodec()],
        fill_value=fill_value,
        # A dot keeps all chunks in one directory instead of one directory a chunk.
        chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )


def create_ids(path: Place, n: int, width: int) -> zarr.Array[Any]:
    """Make the empty array ``ids`` (n, width) of a gallery whose ids are public."""
    chunks = (chunk_rows(n, width), width)
    # The fill value reads as an id without text, which no record has.
    return create_array(create_group(path), IDS, (n, width), chunks, "uint8", 0)


def describe(
    group: zarr.Group,
    *,
    lineage: str,
    n: int,
    d: int,
    source_kind: str,
    zero_rows: str,
    substituted: int,
    id_width: int | None = None,
    **of_its_form: str | int,
) -> None:
    """Write the group's attributes: the last step of an ingest, which makes it a gallery."""
    group.attrs.update(
        {
            GALLERY_MARKER: FORMAT_VERSION,
            "lineage": lineage,
            "fraction_bits": FRACTION_BITS,
            "n": n,
            "d": d,
            **of_its_form,
            "zero_rows": zero_rows,
            "substituted": substituted,
            "source_kind": source_kind,
            **({} if id_width is None else {"id_width": id_width}),
        }
    )


def attributes_of(path: Place) -> Mapping[str, Any] | None:
    """The group's attributes when it carries the gallery marker."""
    try:
        attributes = open_group(path).attrs.asdict()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return attributes if GALLERY_MARKER in attributes else None


def is_gallery(path: Location) -> bool:
    """Whether a gallery of any format version is at ``path`` (complete or not)."""
    return attributes_of(place_of(path)) is not None


def stored_lineage(path: Location) -> str | None:
    """Lineage of the gallery at ``path``, None when no gallery is there."""
    attributes = attributes_of(place_of(path))
    return None if attributes is None else str(attributes.get("lineage", "")) or None


def adopt_lineage(gallery: Gallery, lineage: str) -> Gallery:
    """Let a gallery belong to another lineage, from now on and for everyone who opens it."""
    open_group(gallery.path, writable=True).attrs["lineage"] = lineage
    return replace(gallery, lineage=lineage)


def stored_ids(gallery: Gallery, start: int, stop: int) -> NDArray[np.uint8]:
    """Public ids ``start`` to ``stop`` (k, id_width) of a gallery that has ids, checked.

    Raises
    ------
    IntegrityFailure
        They can't be read, or are not what ingest writes.
    """
    try:
        array = open_group(gallery.path)[IDS]
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


def faulty_chunks(path: Place, expected: Mapping[str, int]) -> tuple[int, str]:
    """How many chunks are not stored at their expected bytes, and the first of them in words."""
    sizes = stored_files(path)
    wrong = [
        f"{key} is missing" if key not in sizes else f"{key} has {sizes[key]} bytes"
        for key, size in expected.items()
        if sizes.get(key) != size
    ]
    shown = ", ".join(wrong[:_SHOWN_CHUNKS]) + (", ..." if len(wrong) > _SHOWN_CHUNKS else "")
    return len(wrong), shown


def panels(n: int, rows: int) -> Iterator[tuple[int, int]]:
    """Successive (start, stop) of at most ``rows`` rows that cover 0 to n."""
    for start in range(0, n, rows):
        yield start, min(start + rows, n)
