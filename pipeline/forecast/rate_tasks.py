"""What is timed to find rates, in one thread of one worker: real kernels on made-up data.

Every function times one kernel of a release and returns its seconds. The data come from
:func:`scoreshield.projection.blockwise.panels.start_pattern`; the noise has a key of zeros and is
thrown away, so nothing that is measured here is, or reveals, anything of a gallery.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pipeline.cluster.blas import one_thread
from pipeline.gallery.dense import read_rows
from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import RowRanges, Share
from pipeline.project.operator import BoxCorrectionBlocks, NoisyBlocks, ShareJob, multiply_share
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import StoredTerm, combine_rows, inner_rows
from pipeline.publish.gram import PublishJob, publish_block
from pipeline.storage import blocks
from pipeline.storage.layout import GALLERY_STORE, NOISY_STORE, RECEIPTS
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.gaussian import Mechanism, noisy_block
from scoreshield.projection.blockwise.panels import start_pattern
from scoreshield.projection.blockwise.subspace import descending_eigh

_NO_KEY = bytes(32)
_OFF_DIAGONAL = Share(0, range(2), range(2, 4))
"""Four blocks of four a side: none is mirrored into itself."""


@dataclass(frozen=True)
class Bench:
    """Places and sizes of the made-up data.

    Attributes
    ----------
    folder : everything is inside it
    triangle : four blocks a side
    mechanism : the noise
    """

    folder: Path
    triangle: Triangle
    mechanism: Mechanism

    @property
    def gallery(self) -> Path:
        """Fixed-point rows, (2 · side, d)."""
        return self.folder / GALLERY_STORE

    @property
    def noisy(self) -> Path:
        """Noisy blocks."""
        return self.folder / NOISY_STORE

    @property
    def receipts(self) -> Path:
        """Their receipts."""
        return self.folder / RECEIPTS

    def own(self, index: int) -> Path:
        """The folder of one thread."""
        return self.folder / f"thread-{index}"


def made_up_rows(count: int, d: int) -> NDArray[np.float32]:
    """Fixed-point unit rows, (count, d)."""
    return to_fixed(start_pattern(range(count), range(d)))


def noise_seconds(job: tuple[Bench, int], index: int) -> float:
    """A noisy block above the diagonal, of records with that many features."""
    bench, d = job
    side = bench.triangle.side
    rows = made_up_rows(side, d)
    with one_thread():
        return _timed(
            lambda: noisy_block(bench.mechanism, rows, rows, 0, side, _NO_KEY, "calibration")
        )


def gallery_seconds(bench: Bench, index: int) -> float:
    """A row panel read and checked."""
    return _timed(lambda: read_rows(bench.gallery, 0, bench.triangle.side))


def write_seconds(bench: Bench, index: int) -> float:
    """A noisy block and its receipt written."""
    side, block = bench.triangle.side, index % bench.triangle.count
    values = np.float32(bench.mechanism.sigma) * start_pattern(range(side), range(side)).astype(
        np.float32
    )

    def write() -> None:
        receipt = blocks.write_block(bench.noisy, bench.triangle, block, values)
        blocks.save_receipt(bench.receipts, receipt)

    return _timed(write)


def read_seconds(bench: Bench, index: int) -> float:
    """A noisy block read, from storage where memory can be made to forget it."""
    block = index % bench.triangle.count
    for file in bench.noisy.rglob("*"):
        if file.is_file():
            _forget(file)
    return _timed(lambda: blocks.read_stored(bench.noisy, bench.triangle, block))


def product_seconds(job: tuple[Bench, PanelFile], index: int) -> float:
    """Four stored blocks, held in memory, by a panel; both ways, as for a share."""
    bench, panel = job
    source = NoisyBlocks(bench.noisy, bench.triangle, 2**62)
    share = ShareJob(source, bench.triangle, panel, bench.own(index))
    return _timed(lambda: multiply_share((share, _OFF_DIAGONAL), 0))


def computed_seconds(job: tuple[Bench, PanelFile, PanelFile], index: int) -> float:
    """The same with four blocks of a box correction of ``aap``, computed from a factor."""
    bench, factor, panel = job
    source = BoxCorrectionBlocks(factor, bench.triangle)
    share = ShareJob(source, bench.triangle, panel, bench.own(index))
    return _timed(lambda: multiply_share((share, _OFF_DIAGONAL), 0))


def step_seconds(job: tuple[Bench, PanelFile], index: int) -> float:
    """A combination of a panel with all its columns, and a reduction of two panels."""
    bench, panel = job
    k = panel.columns
    rows = RowRanges(panel.ranges.rows, panel.ranges.rows)
    combined = PanelFile(bench.own(index), rows, k)
    terms = (StoredTerm(panel, np.full((k, k), 1.0 / k, dtype=np.float32), None),)
    stored = (StoredTerm(combined, 1.0, None),)

    def step() -> None:
        combine_rows((combined, terms), 0)
        inner_rows((rows.span(0), (StoredTerm(panel, 1.0, None),), stored), 0)

    return _timed(step)


def publish_seconds(job: tuple[Bench, Path], index: int) -> float:
    """A block of a dense release, and its mirror."""
    bench, projection = job
    release = publish_job(bench, projection, bench.own(index) / "release")
    return _timed(lambda: publish_block(release, 1))


def publish_job(bench: Bench, projection: Path, directory: Path) -> PublishJob:
    """A dense release of two blocks a side."""
    triangle = Triangle(2 * bench.triangle.side, bench.triangle.side)
    return PublishJob(directory, triangle, ("gram",), projection, None)


def eigen_seconds(job: tuple[int, int], _: int) -> float:
    """An eigendecomposition of that size with that many threads."""
    size, threads = job
    matrix = _symmetric(size)
    with threadpool_limits(threads):
        return _timed(lambda: np.linalg.eigh(matrix))


def small_eigen_seconds(size: int) -> float:
    """An eigendecomposition as the driver of a blockwise projection does it."""
    matrix = _symmetric(size)
    return _timed(lambda: descending_eigh(matrix))


def nothing(_: Any, index: int) -> int:
    """A task that costs only its handing out."""
    return index


def returned(values: NDArray[np.float64], _: int) -> NDArray[np.float64]:
    """A task that sends back what it was sent."""
    return values


def _symmetric(size: int) -> NDArray[np.float64]:
    square = start_pattern(range(size), range(size))
    symmetric: NDArray[np.float64] = square + square.T
    return symmetric


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _forget(file: Path) -> None:
    """Ask the operating system to drop what it holds of a file; one that can't still has it."""
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
