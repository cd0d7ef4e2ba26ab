"""Zarr v2 and v3 directories: an array, or a group that holds one or several.

A chunk is decoded whole. Where chunks are taller than a panel, reading panel by panel would decode
each of them again and again, so the values are laid out column by column in a scratch file first,
one chunk at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.gallery import panels
from pipeline.ingest.layouts import column_major_panels, native, write_all
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
        with reading(self.name):
            if self.array.chunks[0] > rows:
                yield from self._reordered(rows, scratch)
                return
            for start, stop in panels(self.shape[0], rows):
                yield native(np.asarray(self.array[start:stop, :]))

    def _reordered(self, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        # A file without a name: nothing of it is left behind, whatever ends this process.
        with TemporaryFile(dir=scratch, buffering=0) as file:
            tall, wide = self.array.chunks
            for start, stop in panels(self.shape[0], tall):
                for first, last in panels(self.shape[1], wide):
                    block = np.asarray(self.array[start:stop, first:last], dtype=self.dtype)
                    self._write_columns(file, block, start, first)
            yield from column_major_panels(file, self.name, 0, self.shape, self.dtype, rows)

    def _write_columns(self, file: BinaryIO, block: NDArray[Any], start: int, first: int) -> None:
        for feature in range(block.shape[1]):
            column = np.ascontiguousarray(block[:, feature])
            file.seek(((first + feature) * self.shape[0] + start) * self.dtype.itemsize)
            write_all(file, column.view(np.uint8).data)


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
