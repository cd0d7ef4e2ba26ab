"""AnnData files and stores: the embeddings of the observations, ``obsm``, by their own names.

An .h5ad file is HDF5 and a Zarr AnnData store is Zarr, laid out as in
https://anndata.readthedocs.io/en/stable/fileformat-prose.html, and is read as such: the anndata
library would load the tables around the embeddings whole. Before version 0.7, ``obsm`` was one
compound dataset with a field an embedding; both layouts have the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.ingest.hdf5 import chosen_array, chosen_ids, opened
from pipeline.ingest.public_ids import Parts
from pipeline.ingest.source import ArrayEntry, Choice, Source, choose_key, reading
from scoreshield.errors import InputRejected

GROUPS = {"obs", "obsm"}
"""What the root of every AnnData store holds."""


def open_h5ad(path: Path, key: str | None) -> Source:
    """The chosen embedding of an .h5ad file: a name in ``obsm``, or the path of any dataset."""
    with reading(str(path)), opened(path, "anndata") as file:
        return chosen_array(path, file, key, choose_embedding)


def choose_embedding(path: Path, entries: Sequence[ArrayEntry], key: str | None) -> str:
    """The key of an AnnData array; without one, the only embedding, or X where there is none.

    Raises
    ------
    InputRejected
        As :func:`choose_key`, or the key names a table or a sparse matrix.
    """
    keys = {entry.key for entry in entries}
    embeddings = [entry for entry in entries if _in_obsm(entry.key)]
    offered = embeddings or [entry for entry in entries if entry.key == "X"]
    if key is None:
        return choose_key(path, offered, None)
    for name in (f"obsm/{key}", key):
        if name in keys:
            return name
        if any(known.startswith(f"{name}/") for known in keys):
            raise InputRejected(
                f"{path}: '{name}' is a group: a table or a sparse matrix, expected a dense 2-D "
                "array with one embedding a row. Store it as a dense array."
            )
    return choose_key(path, offered, key)


def _in_obsm(key: str) -> bool:
    return key.startswith("obsm/") and key.count("/") == 1


def h5ad_ids(path: Path, name: str) -> Parts:
    """The names of the observations (``obs_names``), or a column of ``obs`` by its name."""
    with reading(str(path)), opened(path, "anndata") as file:
        index = str(file["obs"].attrs.get("_index", "index")) if "obs" in file else "index"
        yield from chosen_ids(path, file, name, choose_ids(index))


def choose_ids(index: str) -> Choice:
    """Picks ids of observations; ``index`` is the column that ``obs_names`` stands for."""

    def choose(path: Path, entries: Sequence[ArrayEntry], name: str | None) -> str:
        columns = [entry for entry in entries if entry.key.startswith("obs/")]
        wanted = f"obs/{index}" if name == "obs_names" else f"obs/{name}"
        keys = {entry.key for entry in columns}
        if wanted in keys:
            return wanted
        if any(known.startswith(f"{wanted}/") for known in keys):
            raise InputRejected(
                f"{path}: '{wanted}' is a group: a categorical column, expected text or integers. "
                "Categories repeat, and ids may not."
            )
        return choose_key(path, columns, name)

    return choose
