"""Zarr v2 and v3 directories: an array, or a group that holds one or several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.ingest.chunked import check_chunks, chunked_panels
from pipeline.ingest.source import ArrayEntry, check_matrix, choose_key, reading
from scoreshield.errors import InputRejected

_METADATA = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True)
class ZarrArray:
    """A matrix in a Zarr array of any chunk shape."""

    name: str
    shape: tuple[int, int]
    array: zarr.Array[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    def panels(self, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        tall, wide = self.array.chunks
        with reading(self.name):
            yield from chunked_panels(
                self.array, self.name, self.shape, self.dtype, (tall, wide), rows, scratch
            )


def is_zarr(path: Path) -> bool:
    """Whether the directory carries Zarr v2 or v3 metadata."""
    return any((path / name).is_file() for name in _METADATA)


def open_zarr(path: Path, key: str | None) -> ZarrArray:
    """The array at ``path``, or the chosen array of the group there."""
    with reading(str(path)):
        node = zarr.open(store=path, mode="r")
    if isinstance(node, zarr.Group):
        name, array = _member(path, node, key)
    elif key is not None:
        raise InputRejected(
            f"{path}: holds no array '{key}'; it is an array itself. Leave the key out."
        )
    else:
        name, array = str(path), node
    shape = check_matrix(name, tuple(array.shape), np.dtype(array.dtype))
    check_chunks(name, tuple(array.chunks), np.dtype(array.dtype))
    return ZarrArray(name, shape, array)


def _member(path: Path, group: zarr.Group, key: str | None) -> tuple[str, zarr.Array[Any]]:
    with reading(str(path)):
        arrays = {
            name: node
            for name, node in group.members(max_depth=None)
            if isinstance(node, zarr.Array)
        }
    entries = [
        ArrayEntry(name, tuple(array.shape), str(array.dtype))
        for name, array in sorted(arrays.items())
    ]
    chosen = choose_key(path, entries, key)
    return os.path.join(path, chosen), arrays[chosen]
