"""The public queries of a scores release: read from a file, checked, kept with the run.

Queries are public, so a manifest names their digest and a run keeps a copy of them. They must not
depend on the gallery: whatever is derived from private records is not public.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure, in_words
from pipeline.ingest import Source, open_matrix
from pipeline.storage.durable import write_atomically
from pipeline.storage.layout import QUERIES
from scoreshield.errors import InputRejected
from scoreshield.mechanisms.scores import fixed_queries

_PANEL_ROWS = 4096
_LARGEST_BYTES = 2**33


@dataclass(frozen=True)
class Queries:
    """Distinct fixed-point queries (m, d) float32, and the digest that a manifest gives."""

    rows: NDArray[np.float32]
    sha256: str


def load_queries(path: Path, key: str | None, d: int | None = None) -> Queries:
    """The queries of any source that ingest reads, in fixed point.

    Parameters
    ----------
    path, key : as for :func:`pipeline.ingest.open_source`; one row is enough.
    d : features of the gallery's records; None where they are not compared with a gallery.

    Raises
    ------
    InputRejected
        The source can't be read, holds no row, rows of other than d features or not of unit
        length, or a query twice.
    """
    source = open_matrix(path, key)
    _check_size(source)
    with tempfile.TemporaryDirectory() as scratch:
        panels = list(source.panels(_PANEL_ROWS, Path(scratch)))
    values = np.concatenate(panels) if panels else np.empty(source.shape, source.dtype)
    try:
        rows = fixed_queries(values, source.shape[1] if d is None else d)
    except InputRejected as error:
        raise InputRejected(f"queries {source.name}: {error}") from error
    return Queries(rows, queries_digest(rows))


def _check_size(source: Source) -> None:
    """Refuse what no memory holds, before reading: a few bytes of header can claim any size."""
    m, d = source.shape
    if 8 * m * d > _LARGEST_BYTES:
        raise InputRejected(
            f"queries {source.name}: found {m} rows of {d} features, expected at most "
            f"{_LARGEST_BYTES} bytes as float64, because all queries are held in memory. Release "
            "them in parts; if the file is not that large, its header is damaged."
        )


def queries_digest(rows: NDArray[np.float32]) -> str:
    """SHA-256 of fixed-point queries (m, d): little-endian float32 in C order."""
    return hashlib.sha256(np.ascontiguousarray(rows, dtype="<f4").data).hexdigest()


def keep_queries(folder: Path, queries: Queries) -> Path:
    """Write the queries into a run's folder, from where its workers read them."""
    content = io.BytesIO()
    np.save(content, queries.rows, allow_pickle=False)
    write_atomically(folder / QUERIES, content.getvalue())
    return folder / QUERIES


@lru_cache(maxsize=2)
def kept_queries(path: Path, sha256: str) -> NDArray[np.float32]:
    """All queries (m, d) of a run, read once a process and checked against their digest.

    Raises
    ------
    IntegrityFailure
        The file can't be read or holds other queries.
    """
    try:
        rows: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise IntegrityFailure(
            f"the run's queries {path} can't be read ({in_words(error)}); run the same command "
            "again"
        ) from error
    if rows.dtype != np.float32 or rows.ndim != 2 or queries_digest(rows) != sha256:
        raise IntegrityFailure(
            f"the run's queries {path} are not those it was started with; run the same command "
            "again, which writes them anew"
        )
    rows.flags.writeable = False
    return rows
