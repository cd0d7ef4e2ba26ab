"""Perturb: the only stage that reads the gallery.

One task reads two row panels, forms their exact inner products, adds the noise of that position,
writes one noisy block and returns a receipt. A clean value never leaves the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from threadpoolctl import ThreadpoolController

from pipeline.blocks import Receipt, Triangle, load_receipt, matches, save_receipt, write_block
from pipeline.gallery import read_rows
from pipeline.keyfile import read_key
from scoreshield.mechanism import Mechanism, noisy_block


@dataclass(frozen=True)
class PerturbJob:
    """What every perturb task of a run has in common: places and settings, no values, no key."""

    gallery: str
    store: str
    receipts: str
    key_file: str
    release_id: str
    mechanism: Mechanism
    triangle: Triangle


def perturb_block(job: PerturbJob, index: int) -> Receipt:
    """Write noisy block ``index`` unless an intact one with a receipt is there already.

    Raises
    ------
    IntegrityFailure
        The gallery or the key can't be read, or a row breaks the bounds that the sensitivity rests
        on, which :func:`pipeline.gallery.read_rows` checks exactly each time.
    """
    receipt = load_receipt(job.receipts, index)
    if receipt is not None and matches(job.store, receipt):
        return receipt
    i, j = job.triangle.position(index)
    rows, columns = job.triangle.span(i), job.triangle.span(j)
    left = read_rows(job.gallery, rows.start, rows.stop)
    right = left if i == j else read_rows(job.gallery, columns.start, columns.stop)
    with _thread_pools().limit(limits=1):
        block = noisy_block(
            job.mechanism,
            left,
            right,
            rows.start,
            columns.start,
            read_key(Path(job.key_file)),
            job.release_id,
        )
    receipt = write_block(job.store, job.triangle, index, block)
    save_receipt(job.receipts, receipt)
    return receipt


@lru_cache(maxsize=1)
def _thread_pools() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes longer than a gallery panel."""
    return ThreadpoolController()
