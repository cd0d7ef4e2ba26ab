"""Public arrays in Zarr v3, values and ids: how they are laid out, read, digested, made durable.

Every array is cut into whole chunks that one task writes, carries a crc32c a chunk and is not
compressed. A missing chunk would silently read as the fill value, hence:
the fill value is NaN, every chunk is written, and every read checks that its values are finite.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure, in_words
from pipeline.storage.layout import METADATA
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, zarr_store

FloatPanel = NDArray[np.float32]
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CHECKSUM_BYTES = 4
_PANEL_BYTES = 256 * 2**20
_PARTIAL = ".partial"


def create_group(path: Place) -> None:
    """Make an empty Zarr v3 group."""
    zarr.create_group(zarr_store(path, read_only=False), zarr_format=3)


def array_metadata(
    shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float32"
) -> dict[str, Any]:
    """Metadata of every array that is made here, as they are in its ``zarr.json``.

    Values are float32; ids are uint8, whose fill value reads as an id without text.

    Spelled out, so that a reader can compare a stored array with all of them, whatever other
    metadata the installed Zarr would understand.
    """
    return {
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if dtype == "float32" else 0,
        "codecs": [
            _BYTES if dtype == "float32" else {"name": "bytes"},
            {"name": "crc32c"},
        ],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def create_array(
    path: Place,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str = "float32",
) -> None:
    """Make an empty array in the group at ``path``."""
    folder = path / name
    metadata = json.dumps(array_metadata(shape, chunks, dtype), indent=2).encode()
    if isinstance(folder, ObjectPath):
        (folder / METADATA).write(metadata)
        return
    folder.mkdir()
    (folder / METADATA).write_bytes(metadata)


def open_for_writing(path: Place, name: str) -> Any:
    """The Zarr array, writable; chunks are written whole."""
    return zarr.open_group(zarr_store(path, read_only=False), mode="r+")[name]


def open_for_reading(path: Place, name: str) -> Any:
    """The Zarr array, read-only.

    Raises
    ------
    IntegrityFailure
        There is no such array.
    """
    try:
        # Consolidated metadata would be a second description of the same array.
        store = zarr_store(path, read_only=True)
        group = zarr.open_group(store, mode="r", zarr_format=3, use_consolidated=False)
        array = group[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityFailure(
            f"{path}: array '{name}' can't be opened: {in_words(error)}"
        ) from error
    if not isinstance(array, zarr.Array):
        raise IntegrityFailure(f"{path}: '{name}' is a group, expected an array")
    return array


def read_ids(array: Any, rows: slice) -> NDArray[np.uint8]:
    """Stored ids (k, w), which :mod:`pipeline.storage.ids` makes text of.

    Raises
    ------
    IntegrityFailure
        A chunk fails its checksum or is cut short.
    """
    return _part(array, (rows, slice(None)), f"{rows.start}:{rows.stop}", np.uint8)


def read(array: Any, region: tuple[slice, ...]) -> FloatPanel:
    """Part of an array, float32 in C order.

    Raises
    ------
    IntegrityFailure
        A chunk fails its checksum, is cut short or missing, or holds values that are not finite.
    """
    shown = ", ".join(f"{part.start}:{part.stop}" for part in region)
    values = _part(array, region, shown, np.float32)
    if not np.isfinite(values).all():
        raise IntegrityFailure(
            f"{array.name}[{shown}] is missing or holds values that are not finite"
        )
    return values


def _part(array: Any, region: tuple[slice, ...], shown: str, dtype: Any) -> NDArray[Any]:
    try:
        return np.ascontiguousarray(array[region], dtype=dtype)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityFailure(f"{array.name}[{shown}] can't be read: {in_words(error)}") from error


class CheckedArray(zarr.Array[Any]):
    """A Zarr array for a reader's hands: what is damaged raises, as in :func:`read`."""

    def __getitem__(self, selection: Any) -> Any:
        try:
            values = super().__getitem__(selection)
        except (OSError, ValueError) as error:
            raise IntegrityFailure(
                f"{self.name}[{selection}] can't be read: {in_words(error)}"
            ) from error
        if not np.isfinite(values).all():
            raise IntegrityFailure(f"{self.name}[{selection}] is missing or damaged")
        return values


def row_panels(array: Any) -> Iterator[slice]:
    """Slices of rows that cover an array, each whole rows of chunks where memory allows."""
    rows, width = array.chunks[0], array.dtype.itemsize * math.prod(array.shape[1:])
    parts = max(1, -(-rows * width // _PANEL_BYTES))
    step = max(1, -(-rows // parts))
    for start in range(0, array.shape[0], step):
        yield slice(start, min(start + step, array.shape[0]))


def array_digest(array: Any) -> str:
    """SHA-256 over the values in C order, little-endian: that of ``array[:].tobytes()``.

    Raises
    ------
    IntegrityFailure
        As :func:`read`.
    """
    digest = hashlib.sha256()
    for rows in row_panels(array):
        if array.dtype == np.uint8:
            digest.update(read_ids(array, rows).data)
            continue
        panel = read(array, (rows, *(slice(0, size) for size in array.shape[1:])))
        digest.update(panel.astype("<f4", copy=False).data)
    return digest.hexdigest()


def chunk_counts(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Number of chunks along each axis; none along an axis of length zero, whatever their side.

    Such an axis has the factor of a matrix without recoverable signal.
    """
    return tuple(
        -(-size // chunk) if size else 0 for size, chunk in zip(shape, chunks, strict=True)
    )


def chunk_files(array: Any) -> list[str]:
    """Names of the chunk files that a complete array has, relative to the array's folder."""
    positions = itertools.product(*map(range, chunk_counts(array.shape, array.chunks)))
    return ["/".join(("c", *map(str, position))) for position in positions]


def chunk_bytes(array: Any) -> int:
    """Size of every chunk file of an array."""
    return int(array.dtype.itemsize * math.prod(array.chunks) + _CHECKSUM_BYTES)


def array_names(path: Place) -> list[str]:
    """Names of the arrays of a store, in order."""
    return sorted(zarr.open_group(zarr_store(path, read_only=True), mode="r").array_keys())


def put_attributes(path: Place, attributes: dict[str, Any]) -> None:
    """Give the group at ``path`` these attributes and no others."""
    zarr.open_group(zarr_store(path, read_only=False), mode="r+").attrs.put(attributes)


def sweep_partial_files(path: Place) -> None:
    """Remove what a worker that was killed in the middle of a write has left."""
    if isinstance(path, ObjectPath):
        # An upload that was cut short made no object.
        return
    for file in path.rglob(f"*{_PARTIAL}"):
        file.unlink()
