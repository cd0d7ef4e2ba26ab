"""Perturb: the only stage that reads the gallery.

One task reads two row panels (or one, and public queries), forms their exact inner products, adds
the noise of that position, writes one noisy block and returns a receipt. A clean value never leaves
the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.cluster.blas import one_thread
from pipeline.gallery.dense import read_rows
from pipeline.gallery.sparse import column_of_feature, read_sparse
from pipeline.ingest.queries import kept_queries
from pipeline.perturb.keyfile import read_committed_key
from pipeline.plan.geometry import Geometry
from pipeline.storage.blocks import Receipt, load_receipt, matches, save_receipt, write_block
from pipeline.storage.place import Place
from scoreshield.arithmetic.products import FixedRows
from scoreshield.mechanisms.gaussian import Mechanism, noisy_block


@dataclass(frozen=True)
class PerturbJob:
    """What every task of a run has in common: places and settings, no values, no key."""

    gallery: Place
    store: Place
    receipts: Place
    key_file: Path
    key_commitment: str
    release_id: str
    mechanism: Mechanism
    geometry: Geometry
    sparse: bool = False
    """Whether the gallery's rows are sparse."""


@dataclass(frozen=True, kw_only=True)
class ScoresJob(PerturbJob):
    """The same of scores; the queries are read from the run's folder."""

    queries: Path
    queries_sha256: str


def perturb_block(job: PerturbJob, index: int) -> Receipt:
    """Write noisy block ``index`` unless an intact one with a receipt is there already.

    Raises
    ------
    IntegrityFailure
        The gallery or the key can't be read, or a row breaks the bounds that the sensitivity rests
        on, which reading checks exactly each time.
    """
    done = _intact_receipt(job, index)
    if done is not None:
        return done
    rows, columns = job.geometry.region(index)
    left = _records(job, rows)
    right = left if rows == columns else _records(job, columns)
    return _write_noisy(job, index, left, right)


def perturb_scores(job: ScoresJob, index: int) -> Receipt:
    """Write noisy block ``index`` of the scores unless an intact one is there already.

    Raises
    ------
    IntegrityFailure
        As :func:`perturb_block`; or the queries are not those the run was started with.
    """
    done = _intact_receipt(job, index)
    if done is not None:
        return done
    rows, columns = job.geometry.region(index)
    queries = (
        _queries_by_column(job.queries, job.queries_sha256, job.gallery)
        if job.sparse
        else kept_queries(job.queries, job.queries_sha256)
    )
    return _write_noisy(job, index, queries[rows], _records(job, columns))


def _records(job: PerturbJob, span: slice) -> FixedRows:
    """A panel of records."""
    read = read_sparse if job.sparse else read_rows
    return read(job.gallery, span.start, span.stop)


@lru_cache(maxsize=2)
def _queries_by_column(path: Path, sha256: str, gallery: Place) -> NDArray[np.float32]:
    """All queries (m, d) of a run, their features in the order of a sparse gallery's columns."""
    queries = kept_queries(path, sha256)
    ordered = np.empty_like(queries)
    ordered[:, column_of_feature(gallery)] = queries
    ordered.flags.writeable = False
    return ordered


def _intact_receipt(job: PerturbJob, index: int) -> Receipt | None:
    receipt = load_receipt(job.receipts, index)
    return receipt if receipt is not None and matches(job.store, receipt) else None


def _write_noisy(
    job: PerturbJob,
    index: int,
    left: FixedRows,
    right: FixedRows,
) -> Receipt:
    """Inner products, noise, block and receipt; what is clean ends with this call."""
    rows, columns = job.geometry.region(index)
    with one_thread():
        block = noisy_block(
            job.mechanism,
            left,
            right,
            rows.start,
            columns.start,
            read_committed_key(job.key_file, job.key_commitment),
            job.release_id,
        )
    receipt = write_block(job.store, job.geometry, index, block)
    save_receipt(job.receipts, receipt)
    return receipt
