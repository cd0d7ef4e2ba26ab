"""Zarr v2 and v3, in a directory or a zip archive: an array, or a group that holds several."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import zarr
import zarr.storage
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.anndata import GROUPS, choose_embedding, choose_ids
from pipeline.ingest.archive import check_members
from pipeline.ingest.chunked import LARGEST_CHUNK_BYTES, check_chunks, chunked_panels
from pipeline.ingest.public_ids import PART_ROWS, Parts, check_ids_array, sliced
from pipeline.ingest.source import ArrayEntry, Choice, Source, check_matrix, choose_key, reading
from pipeline.storage import ids
from pipeline.storage.layout import EMBEDDINGS, GALLERY_MARKER
from scoreshield.errors import InputRejected

_METADATA = ("zarr.json", ".zarray", ".zgroup")
_LARGEST_METADATA = 2**24
_TEXT_BYTES = 4 + ids.LONGEST_ID
_SPARE_BYTES = 2**16
"""What codecs and metadata may take besides the values of a chunk."""


def is_zarr(path: Path) -> bool:
    """Whether the directory carries Zarr v2 or v3 metadata."""
    return any((path / name).is_file() for name in _METADATA)


def open_zarr(path: Path, key: str | None) -> Source:
    """The array at ``path``, or the chosen array of the group there."""
    node, members = _opened(path)
    if isinstance(node, zarr.Group):
        arrays, entries = _arrays(path, node)
        if key is None and GALLERY_MARKER in node.attrs:
            key = EMBEDDINGS  # a gallery may hold ids beside its embeddings
        choose: Choice = choose_embedding if set(node.group_keys()) >= GROUPS else choose_key
        chosen = choose(path, entries, key)
        name, array = os.path.join(path, chosen), arrays[chosen]
    elif key is not None:
        raise InputRejected(
            f"{path}: holds no array '{key}'; it is an array itself. Leave the key out."
        )
    else:
        name, array = str(path), node
    dtype = np.dtype(array.dtype)
    shape = check_matrix(name, tuple(array.shape), dtype)
    check_chunks(name, tuple(array.chunks), dtype)
    _check_stored_chunks(name, array, members)
    return Source(name, shape, dtype, partial(_panels, array))


def zarr_ids(path: Path, name: str) -> Parts:
    """The ids in a 1-D array of text or integers; those of a gallery are its ``ids``."""
    node, members = _opened(path)
    if not isinstance(node, zarr.Group):
        raise InputRejected(f"{path}: holds no ids '{name}'; it is an array itself.")
    arrays, entries = _arrays(path, node)
    choose: Choice = choose_key
    if set(node.group_keys()) >= GROUPS:
        choose = choose_ids(str(node["obs"].attrs.get("_index", "index")))
    chosen = choose(path, entries, name)
    array, named = arrays[chosen], os.path.join(path, chosen)
    check_chunks(named, tuple(array.chunks), np.dtype(array.dtype))
    _check_stored_chunks(named, array, members)
    if GALLERY_MARKER in node.attrs and array.ndim == 2 and array.dtype == np.uint8:
        for start, stop in panels(array.shape[0], PART_ROWS):
            yield ids.decode(np.asarray(array[start:stop, :], dtype=np.uint8))
        return
    check_ids_array(named, tuple(array.shape), np.dtype(array.dtype))
    with reading(named):
        yield from sliced(array, array.shape[0], array.chunks[0])


def _panels(
    array: zarr.Array[Any], matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    tall, wide = array.chunks
    with reading(matrix.name):
        yield from chunked_panels(array, matrix, (tall, wide), rows, scratch)


def _opened(path: Path) -> tuple[zarr.Array[Any] | zarr.Group, Sequence[ZipInfo]]:
    """The array or group at ``path``; members of an archive are looked at before any is read."""
    if path.is_dir():
        with reading(str(path)):
            return zarr.open(store=path, mode="r"), ()
    with reading(str(path)), ZipFile(path) as archive:
        members = archive.infolist()
    check_members(path, members)
    _check_metadata(path, members)
    root = _root(path, [member.filename for member in members])
    with reading(str(path)):
        store = zarr.storage.ZipStore(path, mode="r")
        return zarr.open(store=store, path=root, mode="r"), members


def _root(path: Path, names: list[str]) -> str:
    """Where the archive's Zarr hierarchy begins: at its top, or in its only folder."""
    folders = {name.partition("/")[0] for name in names}
    roots: list[str] = ["", *folders] if len(folders) == 1 else [""]
    for root in roots:
        if any(f"{root}/{name}".lstrip("/") in names for name in _METADATA):
            return root
    raise InputRejected(
        f"{path}: found a zip archive without Zarr metadata at its top, expected a zipped Zarr "
        "array or group. An archive of .npy members is called .npz."
    )


def _check_metadata(path: Path, members: list[ZipInfo]) -> None:
    for member in members:
        metadata = member.filename.rpartition("/")[2] in (*_METADATA, ".zattrs", ".zmetadata")
        if metadata and member.file_size > _LARGEST_METADATA:
            raise InputRejected(
                f"{path}: found {member.filename} of {member.file_size} bytes, expected at most "
                f"{_LARGEST_METADATA} of metadata. The archive is damaged or was made to harm."
            )


def _check_stored_chunks(name: str, array: zarr.Array[Any], members: Sequence[ZipInfo]) -> None:
    """Refuse members that unpack to more than a chunk can take; reading one allocates it."""
    dtype = np.dtype(array.dtype)
    # Text of any length is stored at its own: for ids, four bytes of length and the text.
    value = dtype.itemsize if dtype.kind not in "OT" else _TEXT_BYTES
    largest = math.prod(array.shards or array.chunks) * value
    limit = min(LARGEST_CHUNK_BYTES, largest + largest // 4 + _SPARE_BYTES)
    for member in members:
        inside = not array.path or member.filename.startswith(f"{array.path}/")
        if inside and member.file_size > limit:
            raise InputRejected(
                f"{name}: found a member of {member.file_size} bytes ({member.filename}), "
                f"expected at most {limit} for one chunk. The archive is damaged or was made to "
                "harm."
            )


def _arrays(path: Path, group: zarr.Group) -> tuple[dict[str, zarr.Array[Any]], list[ArrayEntry]]:
    """Every array of a group, by its path within it."""
    with reading(str(path)):
        arrays = {
            name: node
            for name, node in sorted(group.members(max_depth=None))
            if isinstance(node, zarr.Array)
        }
    entries = [
        ArrayEntry(name, tuple(array.shape), str(array.dtype)) for name, array in arrays.items()
    ]
    return arrays, entries
