"""Products of a symmetric matrix, known by the blocks of its upper triangle, with stored panels.

One product is one task for each share of the blocks and one for each row range. A share multiplies
its blocks, B·W_j into rows i and Bᵀ·W_i into rows j, and writes the partial sums of its two spans
of rows; a row range adds up, in float64, the partial sums that touch it. Partial sums are named for
product and share and written atomically, so a repeated task changes nothing.

Where the blocks come from is the source's: read from the noisy store, through a cache of the
worker, or computed from two row panels of a factor. Blocks of integer codes are cached as codes and
turned into numbers when they are multiplied; their step multiplies the sums, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array

from pipeline.cluster.blas import one_thread
from pipeline.cluster.window import run_at_once
from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import Share, ShareOwners, cut_shares
from pipeline.project import block_cache
from pipeline.project.panel_file import FloatPanel, PanelFile, chunks_of, read_rows, write_rows
from pipeline.project.panel_store import ClusterPanel, ClusterPanels
from pipeline.storage.blocks import encoding_of, read_stored
from pipeline.storage.place import Place
from scoreshield.projection.blockwise.box_correction import correction_block

Block = FloatPanel | csr_array


class BlockSource(Protocol):
    """Where the blocks of a symmetric matrix come from; sent to tasks, so small."""

    def scale(self) -> float:
        """What all blocks are to be multiplied with; eight significant bits."""

    def block(self, i: int, j: int, scratch: FloatPanel) -> tuple[Block, int]:
        """Block (i, j), i ≤ j, not to be changed, and the bytes of noisy blocks read for it.

        ``scratch`` has the shape of a whole block; the result may lie in it.
        """


@dataclass(frozen=True)
class NoisyBlocks:
    """The stored noisy matrix, with the unit diagonal that it has by definition.

    Attributes
    ----------
    path : the block store
    triangle : its geometry
    cache_bytes : most bytes of blocks that a worker holds
    """

    path: Place
    triangle: Triangle
    cache_bytes: int

    def scale(self) -> float:
        """The step of the stored codes."""
        return encoding_of(self.path).scale

    def block(self, i: int, j: int, scratch: FloatPanel) -> tuple[Block, int]:
        """Block (i, j) from the worker's cache or the store."""
        index = self.triangle.index(i, j)
        block, read = block_cache.of_this_worker.get(
            self.path,
            index,
            self.cache_bytes,
            lambda: read_stored(self.path, self.triangle, index),
        )
        if i != j and block.dtype == np.float32:
            return block, read
        numbers = scratch[: block.shape[0], : block.shape[1]]
        np.copyto(numbers, block)
        if i == j:
            np.fill_diagonal(numbers, 1.0 / self.scale())
        return numbers, read


@dataclass(frozen=True)
class BoxCorrectionBlocks:
    """E = P_box(F·Fᵀ) − F·Fᵀ of ``aap``: a block is computed when it is needed, never stored.

    Attributes
    ----------
    factor : F, (n, r)
    triangle : how the matrix is cut
    """

    factor: PanelFile
    triangle: Triangle

    def scale(self) -> float:
        """Blocks are computed as they are."""
        return 1.0

    def block(self, i: int, j: int, scratch: FloatPanel) -> tuple[Block, int]:
        """Block (i, j) from two row panels of F, sparse where few of its numbers are not 0."""
        left = self.factor.read(self.triangle.span(i))
        right = left if i == j else self.factor.read(self.triangle.span(j))
        return correction_block(left, right, diagonal=i == j), 0


@dataclass(frozen=True)
class Partial:
    """Partial sums of one share over one span of rows, (rows, k)."""

    path: Path
    start: int
    stop: int
    columns: int

    def read(self, rows: slice) -> FloatPanel:
        """Some of the rows, counted in the whole matrix."""
        within = slice(rows.start - self.start, rows.stop - self.start)
        return read_rows(self.path, within, self.columns)


@dataclass(frozen=True)
class ShareJob:
    """One product: source of the blocks, panel W, folder of the partial sums."""

    source: BlockSource
    triangle: Triangle
    panel: PanelFile
    folder: Path

    def partials(self, share: Share) -> tuple[Partial, ...]:
        """What a share writes: the sums over its rows, and over its columns where they differ."""
        spans = [share.rows] if share.diagonal else [share.rows, share.columns]
        return tuple(
            Partial(
                self.folder / f"{share.index}-{part}.f32",
                self.triangle.span(span[0]).start,
                self.triangle.span(span[-1]).stop,
                self.panel.columns,
            )
            for part, span in enumerate(spans)
        )


class ClusterOperator:
    """A symmetric matrix by its products with panels, computed on the cluster.

    Parameters
    ----------
    algebra : home of the panels
    source : of the blocks
    triangle : how the matrix is cut
    held : a panel that the source reads, which lives as long as the operator
    multiplied : called after each product
    """

    def __init__(
        self,
        algebra: ClusterPanels,
        source: BlockSource,
        triangle: Triangle,
        held: ClusterPanel | None = None,
        multiplied: Callable[[], None] | None = None,
    ) -> None:
        self._algebra = algebra
        self._multiplied = multiplied
        self._held = held
        self._source = source
        self._triangle = triangle
        self._shares = cut_shares(triangle.per_side, algebra.threads)
        self._owners = ShareOwners(self._shares)
        self.bytes_read = 0
        """Bytes of noisy blocks that all products so far have read from storage."""

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return self._triangle.n

    def matmat(self, W: ClusterPanel, /) -> ClusterPanel:
        """Product G·W, (n, k) → (n, k)."""
        algebra, client = self._algebra, self._algebra.client
        panel = algebra.stored(W)
        folder = algebra.new_folder()
        job = ShareJob(self._source, self._triangle, panel, folder)
        owners = self._owners.among(client.nthreads())
        # The largest first: what is left at the end is small.
        order = sorted(self._shares, key=lambda share: -share.work)
        self.bytes_read += sum(
            run_at_once(
                client,
                f"multiply-{folder.name}",
                multiply_share,
                [(job, share) for share in order],
                [owners[share.index] for share in order],
            )
        )
        partials = [partial for share in self._shares for partial in job.partials(share)]
        product = algebra.written(
            panel.columns, add_partials, lambda rows: _touching(partials, rows)
        )
        shutil.rmtree(folder, ignore_errors=True)
        if self._multiplied is not None:
            self._multiplied()
        return algebra.adopt(product)


def box_correction(
    algebra: ClusterPanels,
    triangle: Triangle,
    factor: ClusterPanel,
    multiplied: Callable[[], None] | None = None,
) -> ClusterOperator:
    """P_box(F·Fᵀ) − F·Fᵀ by its products, (n, r) → an operator on n rows."""
    source = BoxCorrectionBlocks(algebra.stored(factor), triangle)
    return ClusterOperator(algebra, source, triangle, factor, multiplied)


def multiply_share(task: tuple[ShareJob, Share], _: int) -> int:
    """Write the partial sums of one share; returns the bytes of noisy blocks it has read."""
    job, share = task
    partials = job.partials(share)
    panels = [job.panel.read(slice(partial.start, partial.stop)) for partial in partials]
    sums = [np.zeros_like(panel) for panel in panels]
    scratch = np.empty(job.triangle.shape, dtype=np.float32)
    total = 0
    with one_thread():
        for i, j in _blocks(share):
            block, read = job.source.block(i, j, scratch)
            total += read
            rows = _within(job.triangle.span(i), partials[0])
            columns = _within(job.triangle.span(j), partials[-1])
            sums[0][rows] += block @ panels[-1][columns]
            if i != j:
                sums[-1][columns] += block.T @ panels[0][rows]
    for partial, values in zip(partials, sums, strict=True):
        values *= np.float32(job.source.scale())
        write_rows(partial.path, iter([values]))
    return total


def add_partials(job: tuple[PanelFile, list[Partial]], index: int) -> None:
    """Write one row range of a product: the partial sums that touch it, added up in float64."""
    file, partials = job
    file.write(index, _added(partials, file.ranges.span(index), file.columns))


def _added(partials: list[Partial], rows: slice, columns: int) -> Iterator[FloatPanel]:
    for chunk in chunks_of(rows):
        total = np.zeros((chunk.stop - chunk.start, columns))
        for partial in _touching(partials, chunk):
            overlap = slice(max(chunk.start, partial.start), min(chunk.stop, partial.stop))
            total[overlap.start - chunk.start : overlap.stop - chunk.start] += partial.read(overlap)
        yield total.astype(np.float32)


def _touching(partials: list[Partial], rows: slice) -> list[Partial]:
    return [part for part in partials if part.start < rows.stop and part.stop > rows.start]


def _blocks(share: Share) -> Iterator[tuple[int, int]]:
    return ((i, j) for j in share.columns for i in share.rows if i <= j)


def _within(span: slice, partial: Partial) -> slice:
    """Rows of the matrix as rows of a partial sum."""
    return slice(span.start - partial.start, span.stop - partial.start)
