"""HDF5 files, read with h5py: datasets, and fields of compound datasets, chosen by path.

A file can point elsewhere: external links, external storage and virtual datasets name other files
of this machine. None of them is followed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ingest.chunked import check_chunks, chunked_panels
from pipeline.ingest.libraries import library
from pipeline.ingest.public_ids import Parts, check_ids_array, sliced
from pipeline.ingest.source import ArrayEntry, Choice, Source, check_matrix, choose_key, reading
from scoreshield.errors import InputRejected


@dataclass(frozen=True)
class Hdf5Place:
    """Where an array lies: a dataset, and the field of it where the dataset is compound."""

    dataset: str
    field: str | None = None

    @property
    def key(self) -> str:
        """The key of the array: the path of the dataset, and of the field below it."""
        return self.dataset if self.field is None else f"{self.dataset}/{self.field}"


@dataclass(frozen=True)
class _Field:
    """A field of a compound dataset, sliced like a matrix; HDF5 reads such fields whole rows."""

    records: Any

    def __getitem__(self, region: tuple[slice, slice]) -> NDArray[Any]:
        rows, columns = region
        return np.asarray(self.records[rows])[:, columns]


def open_hdf5(path: Path, key: str | None) -> Source:
    """The chosen array of an HDF5 file, after checking what its header says of it."""
    with reading(str(path)), opened(path) as file:
        return chosen_array(path, file, key)


def hdf5_ids(path: Path, name: str) -> Parts:
    """The ids in a 1-D dataset of text or integers, or in such a field of a compound one."""
    with reading(str(path)), opened(path) as file:
        yield from chosen_ids(path, file, name)


def chosen_array(path: Path, file: Any, key: str | None, choose: Choice = choose_key) -> Source:
    """The array of an open file that a key names, or the only one."""
    name, place, shape, dtype = _found(path, file, key, choose)
    matrix = check_matrix(name, shape, dtype)
    _check_chunks(name, file[place.dataset])
    return Source(name, matrix, dtype, partial(_panels, path, place))


def chosen_ids(path: Path, file: Any, name: str, choose: Choice = choose_key) -> Parts:
    """The ids of an open file under a name."""
    named, place, shape, dtype = _found(path, file, name, choose)
    check_ids_array(named, shape, dtype)
    dataset = file[place.dataset]
    _check_chunks(named, dataset)
    values = dataset if place.field is None else dataset.fields(place.field)
    with reading(named):
        yield from sliced(values, shape[0], dataset.chunks[0] if dataset.chunks else 1)


def _panels(
    path: Path, place: Hdf5Place, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    with reading(matrix.name), opened(path) as file:
        dataset = file[place.dataset]
        chunks = None if dataset.chunks is None else (dataset.chunks[0], matrix.shape[1])
        if place.field is None:
            values, chunks = dataset, dataset.chunks
        else:
            values = _Field(dataset.fields(place.field))
        yield from chunked_panels(values, matrix, chunks, rows, scratch)


def _found(
    path: Path, file: Any, key: str | None, choose: Choice
) -> tuple[str, Hdf5Place, tuple[int, ...], np.dtype[Any]]:
    """Name, place, shape and type of the array that a key names, or of the only one."""
    places, entries = list_arrays(file)
    if key is not None and key not in places:
        _refuse_link(path, file, key)
    place = places[choose(path, entries, key)]
    name, dataset = f"{path}[{place.key}]", file[place.dataset]
    _refuse_absent_values(name, dataset)
    return name, place, *_layout(dataset, place.field)


def _check_chunks(name: str, dataset: Any) -> None:
    if dataset.chunks is not None:
        check_chunks(name, dataset.chunks, dataset.dtype)


def list_arrays(file: Any) -> tuple[dict[str, Hdf5Place], list[ArrayEntry]]:
    """Every dataset and field of an open file, by key; links are not followed."""
    places: dict[str, Hdf5Place] = {}
    entries: list[ArrayEntry] = []

    def visit(path: str, node: Any) -> None:
        if not hasattr(node, "dtype") or not hasattr(node, "shape"):
            return
        fields = node.dtype.names if len(node.shape or ()) == 1 else None
        for field in fields or (None,):
            place = Hdf5Place(path, field)
            shape, dtype = _layout(node, field)
            places[place.key] = place
            entries.append(ArrayEntry(place.key, shape, str(dtype)))

    file.visititems(visit)
    return places, entries


def opened(path: Path, extra: str = "hdf5") -> Any:
    """The open file, read-only; without locking, which needs permission to write."""
    return library("h5py", extra, path).File(path, "r", locking=False)


def _layout(dataset: Any, field: str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a dataset, or of one of its fields."""
    shape, dtype = tuple(dataset.shape or ()), dataset.dtype
    if field is not None:
        dtype = dtype[field]
    if dtype.metadata and "vlen" in dtype.metadata:
        text = dtype.metadata["vlen"] in (str, bytes)
        dtype = np.dtypes.StringDType() if text else np.dtype(object)
    return (*shape, *dtype.shape), dtype.base


def _refuse_link(path: Path, file: Any, key: str) -> None:
    """Say what a key is that names no array because it leads elsewhere."""
    parts = key.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        link = file.get(posixpath.join(*parts[:end]), getlink=True)
        target = getattr(link, "filename", None)
        if target is not None:
            raise InputRejected(
                f"{path}[{key}]: found a link to another file, which is not followed, expected "
                "the array itself. Copy the array into one file (h5repack, or h5py's copy with "
                "expand_external)."
            )


def _refuse_absent_values(name: str, dataset: Any) -> None:
    if dataset.is_virtual or dataset.external:
        found = "a virtual dataset" if dataset.is_virtual else "external storage"
        raise InputRejected(
            f"{name}: found {found}, whose values lie in other files, which are not read; expected "
            "the values in this file. Copy the dataset into a file of its own."
        )
    if dataset.size and not dataset.id.get_storage_size():
        raise InputRejected(
            f"{name}: found a dataset of shape {dataset.shape} whose values were never written, "
            "expected its values. Write it again."
        )
