"""The formats that ingest reads: one line each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.ingest.anndata import h5ad_ids, open_h5ad
from pipeline.ingest.hdf5 import hdf5_ids, open_hdf5
from pipeline.ingest.npy import open_npy
from pipeline.ingest.npz import npz_ids, open_npz
from pipeline.ingest.parquet import open_parquet, parquet_ids
from pipeline.ingest.public_ids import Parts
from pipeline.ingest.safetensors import open_safetensors
from pipeline.ingest.source import Source, check_records, reading
from pipeline.ingest.vecs import TYPES, open_vecs
from pipeline.ingest.words import open_words, word_ids
from pipeline.ingest.zarr_array import is_zarr, open_zarr, zarr_ids
from scoreshield.errors import InputRejected


@dataclass(frozen=True)
class Format:
    """How a kind of source is recognised and opened.

    Attributes
    ----------
    kind : short name, kept in the gallery's attributes.
    description : what a person calls it.
    recognises : whether an existing path is of this kind, without reading its values.
    open : path and key (None: the only array) to a source; raises InputRejected.
    ids : path and name to the ids under that name; None for formats that hold numbers alone.
    """

    kind: str
    description: str
    recognises: Callable[[Path], bool]
    open: Callable[[Path, str | None], Source]
    ids: Callable[[Path, str], Parts] | None = None


def _file(*suffixes: str) -> Callable[[Path], bool]:
    """Recognises files by how their names end."""
    return lambda path: path.is_file() and path.suffix.lower() in suffixes


FORMATS = (
    Format("npy", "a NumPy .npy file", _file(".npy"), open_npy),
    Format("npz", "a NumPy .npz file", _file(".npz"), open_npz, npz_ids),
    Format("zarr", "a Zarr v2 or v3 directory (array or group)", is_zarr, open_zarr, zarr_ids),
    Format("zarr-zip", "a zipped Zarr (.zarr.zip)", _file(".zip"), open_zarr, zarr_ids),
    Format(
        "parquet", "a Parquet file (.parquet)", _file(".parquet", ".pq"), open_parquet, parquet_ids
    ),
    Format("hdf5", "an HDF5 file (.h5, .hdf5)", _file(".h5", ".hdf5", ".hdf"), open_hdf5, hdf5_ids),
    Format("anndata", "an AnnData file (.h5ad)", _file(".h5ad"), open_h5ad, h5ad_ids),
    Format("safetensors", "a .safetensors file", _file(".safetensors"), open_safetensors),
    Format("vecs", "a file of .fvecs, .bvecs or .ivecs", _file(*TYPES), open_vecs),
    Format(
        "words", "a text of word vectors (.vec, .txt)", _file(".vec", ".txt"), open_words, word_ids
    ),
)


def accepted_kinds() -> str:
    """The accepted kinds of source in words, for messages and help texts."""
    return ", ".join(entry.description for entry in FORMATS)


def find_format(path: Path) -> Format:
    """The format of an existing path.

    Raises
    ------
    InputRejected
        Nothing is there, or nothing that ingest reads.
    """
    with reading(str(path)):
        if not path.exists():
            raise InputRejected(f"{path}: does not exist, expected {accepted_kinds()}.")
        for entry in FORMATS:
            if entry.recognises(path):
                return entry
    found = f"a file ending in '{path.suffix}'"
    if path.is_dir():
        found = "a directory without Zarr metadata"
    raise InputRejected(f"{path}: found {found}, expected one of: {accepted_kinds()}.")


def open_ids(found: Format, path: Path, name: str) -> Parts:
    """The ids that a source of a found format holds under a name, not yet checked.

    Raises
    ------
    InputRejected
        The format holds no ids, or there are none under that name; the message lists what is there.
    """
    if found.ids is None:
        able = ", ".join(entry.description for entry in FORMATS if entry.ids is not None)
        raise InputRejected(
            f"{path}: {found.description} holds no ids, found public ids '{name}'. Formats that "
            f"can hold ids: {able}."
        )
    return found.ids(path, name)


def open_source(path: str | os.PathLike[str], key: str | None = None) -> Source:
    """Open a matrix of at least two records: :func:`open_matrix` of what can become a gallery."""
    return check_records(open_matrix(path, key))


def open_matrix(path: str | os.PathLike[str], key: str | None = None) -> Source:
    """Open a matrix for reading, its header checked and its values not yet read.

    Parameters
    ----------
    path : a file or directory of an accepted kind.
    key : which array, where the source holds several: a member of an archive, a column of a table,
        or the path of an array within a group.

    Raises
    ------
    InputRejected
        The path, the key, the shape or the dtype is not one that ingest accepts.
    """
    location = Path(path)
    return find_format(location).open(location, key)
