"""Safetensors files, read with the safetensors library: one tensor by name.

The library maps the file, and pages that were touched stay in memory, so the map is made anew from
time to time. It holds no pickled objects by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.layouts import native
from pipeline.ingest.libraries import library
from pipeline.ingest.source import ArrayEntry, Source, check_matrix, choose_key, reading
from scoreshield.errors import InputRejected

_MAPPED_BYTES = 16 * 2**20
_TYPES = {
    "BOOL": "?",
    "F16": "f2",
    "F32": "f4",
    "F64": "f8",
    **{f"I{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
}


def open_safetensors(path: Path, key: str | None) -> Source:
    """The chosen tensor of a safetensors file; the library checks the header against the file."""
    with _opened(path, str(path)) as file:
        entries = [_entry(name, file.get_slice(name)) for name in sorted(file.keys())]
        chosen = choose_key(path, entries, key)
        tensor = file.get_slice(chosen)
        shape, kind = tuple(tensor.get_shape()), tensor.get_dtype()
    name = f"{path}[{chosen}]"
    if kind not in _TYPES:
        raise InputRejected(
            f"{name}: found values of type {kind}, which NumPy does not have, expected integers, "
            "or floats of 16, 32 or 64 bits. Save the tensor as F32, which loses nothing."
        )
    dtype = np.dtype(_TYPES[kind])
    return Source(name, check_matrix(name, shape, dtype), dtype, partial(_panels, path, chosen))


def _panels(
    path: Path, key: str, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    n, d = matrix.shape
    mapped = max(rows, _MAPPED_BYTES // (d * matrix.dtype.itemsize) // rows * rows)
    for first, last in panels(n, mapped):
        with _opened(path, matrix.name) as file:
            tensor = file.get_slice(key)
            for start, stop in panels(last - first, rows):
                yield native(np.asarray(tensor[first + start : first + stop]))


def _entry(name: str, tensor: Any) -> ArrayEntry:
    return ArrayEntry(name, tuple(tensor.get_shape()), tensor.get_dtype())


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    safetensors = library("safetensors", "safetensors", path)
    with reading(name):
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                yield file
        except safetensors.SafetensorError as error:
            raise ValueError(str(error)) from error
