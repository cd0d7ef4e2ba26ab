"""From a source to a gallery in one pass: check, normalise, round, write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.open import open_gallery
from pipeline.gallery.store import (
    Gallery,
    Location,
    chunk_rows,
    describe,
    open_group,
    panels,
)
from pipeline.ingest.formats import find_format, open_ids
from pipeline.ingest.public_ids import write_public_ids
from pipeline.ingest.rows import OffendingRows, all_zero_rows, non_finite_rows, refuse
from pipeline.ingest.source import Source, check_records
from pipeline.ingest.target import CountDone, Unfinished, ZeroRows, checked_target, unfinished
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place
from scoreshield.arithmetic.fixedpoint import substitute_row, to_fixed
from scoreshield.errors import InputRejected

PANEL_BYTES = 16 * 2**20
_SLICE_VALUES = 2**19


def ingest(
    source: str | os.PathLike[str],
    target: Location,
    *,
    key: str | None = None,
    public_ids: str | None = None,
    zero_rows: ZeroRows = "refuse",
    lineage: str | None = None,
    overwrite: bool = False,
    progress: CountDone | None = None,
) -> Gallery:
    """Make the gallery ``target`` of the matrix in ``source``.

    Rows are normalised and rounded to fixed-point unit rows. At most a few panels are in memory.
    The target appears when everything is written, or not at all.

    Parameters
    ----------
    source : a file or directory of an accepted kind, or another gallery.
    target : directory to make, readable by its owner alone; or a URL in an object store, where
        who may read it is up to the bucket's policy.
    key : which array, where the source holds several: a member of an archive, a column of a table,
        a path within a group.
    public_ids : where the source holds the records' ids, named like ``key``; whoever gives it
        declares them public, and every release of the gallery carries them. By default none.
    zero_rows : "refuse" them, or "substitute" one fixed unit vector that depends on d alone.
    lineage : whose budget the releases of this gallery draw on, 32 hexadecimal digits. By default
        the source's when that is a gallery, else that of the gallery being overwritten (the same
        people's data drawn again spends the same budget), else a new one.
    overwrite : replace an existing gallery; anything else at the target is never replaced.
    progress : called with the number of rows done, after each panel.

    Raises
    ------
    InputRejected
        The source is not a matrix of finite non-zero rows, its ids are not distinct printable text,
        or the target may not be replaced.
    ParameterError
        ``zero_rows`` or ``lineage`` is not one of the values above.
    RunFailed
        The target can't be written, or another ingest is writing it.
    """
    destination, location = checked_target(target, overwrite, zero_rows, lineage), Path(source)
    found = find_format(location)
    matrix = check_records(found.open(location, key))
    _check_room(matrix, destination)
    ids = None if public_ids is None else open_ids(found, location, public_ids)
    with unfinished(matrix.name, destination, overwrite, lineage) as made:
        width = None
        if ids is not None:
            name = f"{location}[{public_ids}]"
            width = write_public_ids(made.place, ids, name, matrix.shape[0], made.scratch)
        _write(matrix, found.kind, made, zero_rows, width, progress)
    return open_gallery(destination)


def _check_room(source: Source, target: Place) -> None:
    """Refuse what can't fit the disk, before reading: a few bytes of header can claim any size."""
    if isinstance(target, ObjectPath):
        return
    n, d = source.shape
    folder = next(parent for parent in target.parents if parent.exists())
    needed, free = 4 * n * d, shutil.disk_usage(folder).free
    if needed > free:
        raise InputRejected(
            f"{source.name}: found {n} rows of {d} features, a gallery of {needed} bytes, while "
            f"{free} bytes are free at {folder}. Make room or choose another target; if the "
            "source is not that large, its header is damaged."
        )


def _write(
    source: Source,
    kind: str,
    made: Unfinished,
    zero_rows: ZeroRows,
    id_width: int | None,
    progress: CountDone | None,
) -> None:
    """Write the rows of ``source``, and what makes them a gallery.

    Once a row is refused nothing more is written, but the scan goes on to count them all.
    """
    n, d = source.shape
    substitute = zero_rows == "substitute"
    array = create_embeddings(made.place, n, d)
    non_finite, zero = OffendingRows(), OffendingRows()
    start = 0
    for panel in source.panels(_panel_rows(n, d), made.scratch):
        empty = all_zero_rows(panel)
        non_finite.add(non_finite_rows(panel), start)
        zero.add(empty, start)
        if not non_finite.count and (substitute or not zero.count):
            array[start : start + panel.shape[0], :] = _fixed_rows(panel, empty)
        start += panel.shape[0]
        if progress is not None:
            progress(start)
    refuse(source.name, n, non_finite, OffendingRows() if substitute else zero)
    describe(
        open_group(made.place, writable=True),
        lineage=made.lineage,
        n=n,
        d=d,
        source_kind=kind,
        zero_rows=zero_rows,
        substituted=zero.count,
        id_width=id_width,
    )


def _panel_rows(n: int, d: int) -> int:
    """Whole chunks, at most 16 MiB as float64: two panels are alive while the next is read."""
    rows = chunk_rows(n, d)
    return rows * max(1, PANEL_BYTES // (8 * d * rows))


def _fixed_rows(rows: NDArray[Any], empty: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Fixed-point unit rows (k, d), the substitute where a row is empty.

    In slices, because normalising takes several float64 copies of what it is given.
    """
    k, d = rows.shape
    fixed = np.empty((k, d), dtype=np.float32)
    for start, stop in panels(k, max(1, _SLICE_VALUES // d)):
        kept = ~empty[start:stop]
        fixed[start:stop][kept] = to_fixed(rows[start:stop][kept])
    if empty.any():
        fixed[empty] = substitute_row(d)
    return fixed
