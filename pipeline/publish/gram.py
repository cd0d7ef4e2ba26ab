"""Writing a release: its arrays block by block, its digests, and the manifest last.

Everything is computed from the projected factor, or from the noisy blocks where there was no
projection. A release directory without a manifest is an interrupted publication and is written
afresh; one with a manifest is finished and is never touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.project.dense import describe_array
from pipeline.storage import arrays
from pipeline.storage.blocks import read_block
from pipeline.storage.durable import sync, sync_tree, write_atomically
from pipeline.storage.layout import (
    MANIFEST,
    MANIFEST_ATTRIBUTE,
    METADATA,
    PROJECTION_STORE,
    RELEASE_STORE,
)
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, stored_files
from scoreshield.manifest.schema import ArrayRecord, Manifest, to_json
from scoreshield.mechanisms.released import gram_block, with_unit_diagonal

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


@dataclass(frozen=True)
class PublishJob:
    """One Gram release to write.

    Attributes
    ----------
    directory : release directory
    triangle : geometry of the noisy blocks; its side is the chunk side of the release
    arrays : ``"gram"``, ``"factor"`` (which brings ``diagonal`` with it), or both
    projection : folder made by :func:`pipeline.project.dense.project_task`; None for method
        ``none``
    noisy : noisy block store, read only where ``projection`` is None
    """

    directory: Place
    triangle: Triangle
    arrays: tuple[str, ...]
    projection: Path | None
    noisy: Place | None

    @property
    def store(self) -> Place:
        """Place of the release's Zarr group."""
        return store_of(self.directory)


def prepare_release(job: PublishJob) -> None:
    """Make the release directory with empty arrays; an interrupted publication is cleared.

    Raises
    ------
    ConfigurationError
        The directory holds a finished release or foreign files, or an array that was asked for
        can't be made.
    """
    _check_arrays(job)
    start_release(job.directory)
    n, rows = job.triangle.n, min(job.triangle.side, job.triangle.n)
    if "factor" in job.arrays:
        columns = _projected(job, "factor").shape[1]
        arrays.create_array(job.store, "factor", (n, columns), (rows, columns))
        arrays.create_array(job.store, "diagonal", (n,), (rows,))
    if "gram" in job.arrays:
        arrays.create_array(job.store, "gram", (n, n), (rows, rows))


def start_release(directory: Place) -> None:
    """Make a release directory with an empty store; an interrupted publication is cleared.

    Raises
    ------
    ConfigurationError
        The directory holds a finished release or foreign files.
    """
    _clear(directory)
    arrays.create_group(store_of(directory))


def store_of(directory: Place) -> Place:
    """The Zarr group of a release directory."""
    return directory / RELEASE_STORE


def publish_panel(job: PublishJob, index: int) -> int:
    """Copy row panel ``index`` of factor and diagonal; one task of ``triangle.per_side``."""
    rows = job.triangle.span(index)
    factor = _projected(job, "factor")
    arrays.open_for_writing(job.store, "factor")[rows, :] = arrays.read(
        factor, (rows, slice(0, factor.shape[1]))
    )
    arrays.open_for_writing(job.store, "diagonal")[rows] = arrays.read(
        _projected(job, "diagonal"), (rows,)
    )
    return index


def publish_block(job: PublishJob, index: int) -> int:
    """Write block (i, j) of the Gram matrix and its mirror; one task of ``triangle.count``."""
    i, j = job.triangle.position(index)
    rows, columns = job.triangle.span(i), job.triangle.span(j)
    if job.projection is None:
        block = _clipped_block(job, index)
    else:
        factor = _projected(job, "factor")
        whole = slice(0, factor.shape[1])
        left = arrays.read(factor, (rows, whole))
        right = left if i == j else arrays.read(factor, (columns, whole))
        block = gram_block(left, right)
    if i == j:
        block = with_unit_diagonal(block)
    gram = arrays.open_for_writing(job.store, "gram")
    gram[rows, columns] = block
    if i != j:
        gram[columns, rows] = np.ascontiguousarray(block.T)
    return index


def describe_arrays(
    directory: Place, progress: Callable[[str], None] | None = None
) -> dict[str, ArrayRecord]:
    """Shape, type and digest of every array of a written release, read back from storage.

    Raises
    ------
    IntegrityFailure
        An array is incomplete or damaged.
    """
    store = store_of(directory)
    records = {}
    for name in arrays.array_names(store):
        records[name] = describe_array(arrays.open_for_reading(store, name))
        if progress is not None:
            progress(name)
    return records


def finish(directory: Place, manifest: Manifest) -> None:
    """Make the store durable, copy the manifest into its attributes, then write the manifest.

    Raises
    ------
    IntegrityFailure
        The manifest is not signed or describes other arrays, or a chunk is missing.
    ConfigurationError
        The release is already finished.
    """
    store = store_of(directory)
    _refuse_finished(directory)
    if manifest.signature is None:
        raise IntegrityFailure(
            f"{directory}: the manifest is not signed; sign it before publishing"
        )
    arrays.sweep_partial_files(store)
    _check_complete(store, manifest)
    text = to_json(manifest)
    arrays.put_attributes(store, {MANIFEST_ATTRIBUTE: manifest.model_dump(mode="json")})
    if isinstance(store, Path):
        # In an object store all is durable once it is there, and its policy says who reads it.
        sync_tree(store, file_mode=_FILE_MODE, folder_mode=_FOLDER_MODE)
    _write_manifest(directory, text.encode())


def _write_manifest(folder: Place, content: bytes) -> None:
    """The last step, which makes a release of what is there."""
    if isinstance(folder, ObjectPath):
        try:
            (folder / MANIFEST).create(content)
        except FileExistsError as error:
            raise _finished(folder) from error
        return
    folder.chmod(_FOLDER_MODE)
    sync(folder)
    write_atomically(folder / MANIFEST, content, mode=_FILE_MODE)
    sync(folder.parent)


def _check_arrays(job: PublishJob) -> None:
    unknown = sorted(set(job.arrays) - {"factor", "gram"})
    if unknown or not job.arrays:
        raise ConfigurationError(
            f"arrays must name 'factor', 'gram' or both, found {list(job.arrays)!r}"
        )
    if "factor" in job.arrays:
        _projected(job, "factor")


def check_directory(folder: Place) -> None:
    """Refuse a release directory that holds a finished release, or what is none of ours.

    Raises
    ------
    ConfigurationError
        The first thing in the way is named.
    """
    _refuse_finished(folder)
    foreign = sorted(
        name
        for name in _names(folder)
        if name != RELEASE_STORE and not name.startswith(f".{MANIFEST}.")
    )
    if foreign:
        raise ConfigurationError(
            f"{folder} holds {foreign[0]!r}, which no interrupted publication leaves; "
            "move it away or choose another output folder"
        )


def _names(folder: Place) -> set[str]:
    """What lies in a folder that may not be there."""
    if isinstance(folder, ObjectPath):
        return folder.names()
    return {entry.name for entry in (folder.iterdir() if folder.exists() else ())}


def _clear(folder: Place) -> None:
    """Empty a release directory that was interrupted, and nothing else."""
    check_directory(folder)
    if isinstance(folder, ObjectPath):
        (folder / RELEASE_STORE).delete()
        return
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _refuse_finished(folder: Place) -> None:
    if (folder / MANIFEST).exists():
        raise _finished(folder)


def _finished(folder: Place) -> ConfigurationError:
    return ConfigurationError(
        f"{folder} holds a finished release, and releases are never overwritten; "
        "choose another release id"
    )


def _check_complete(store: Place, manifest: Manifest) -> None:
    names = arrays.array_names(store)
    if names != sorted(manifest.arrays):
        raise IntegrityFailure(
            f"{store} holds arrays {names}, the manifest describes {sorted(manifest.arrays)}"
        )
    expected = {METADATA} | {
        f"{name}/{file}"
        for name in names
        for file in (
            METADATA,
            *arrays.chunk_files(arrays.open_for_reading(store, name)),
        )
    }
    different = sorted(expected ^ stored_files(store).keys())
    if different:
        raise IntegrityFailure(
            f"{store}: {len(different)} files are missing or don't belong there, the first is "
            f"{different[0]}; run the same command again to publish afresh"
        )


def _clipped_block(job: PublishJob, index: int) -> NDArray[np.float32]:
    if job.noisy is None:
        raise ConfigurationError("neither a projection nor noisy blocks to publish were given")
    return np.clip(read_block(job.noisy, job.triangle, index), -1.0, 1.0)


def _projected(job: PublishJob, name: str) -> Any:
    if job.projection is None:
        raise ConfigurationError(
            "projection method 'none' makes no factor; ask for arrays: [gram], or for a method"
        )
    return arrays.open_for_reading(job.projection / PROJECTION_STORE, name)
