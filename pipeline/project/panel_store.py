"""Panels (n × k) of a blockwise projection, kept on shared storage and computed on the cluster.

The driver holds k × k arrays and vectors of n numbers; an operation is one task for each row range.
A linear combination is *deferred*: its first use in a reduction evaluates it on the way, without
storing it, and it is stored once it is needed again or by a product. So the many combinations that
a solver reads once (a Jacobian product, a step of a line search) cost no storage and no pass of
their own, and those it never reads cost nothing.

Panels are float32, reductions add up in float64 and in the order of the rows, so that no result
depends on which worker was first.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from pipeline.cluster.blas import one_thread
from pipeline.cluster.window import run_at_once
from pipeline.plan.shares import RowRanges
from pipeline.project.panel_file import FloatPanel, PanelFile, chunks_of
from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.panels import Term, start_pattern
from scoreshield.projection.operator import FloatArray


@dataclass(frozen=True, eq=False)
class Columns:
    """Coefficients C with at most one number a column: C[index[l], l] = weight[l].

    Selecting, scaling and concatenating panels are combinations of this kind, and need no product.
    """

    index: NDArray[np.intp]
    weight: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class StoredTerm:
    """Diag(s)·A·C with A stored; s is cut to the rows of the task that it is sent to."""

    panel: PanelFile
    coefficients: NDArray[np.float32] | Columns | float
    row_scale: NDArray[np.float32] | None

    @property
    def columns(self) -> int:
        """Columns of the term."""
        if isinstance(self.coefficients, Columns):
            return int(self.coefficients.index.size)
        if isinstance(self.coefficients, float):
            return self.panel.columns
        return int(self.coefficients.shape[1])

    def for_rows(self, rows: slice) -> StoredTerm:
        """The term as one task needs it."""
        if self.row_scale is None:
            return self
        return StoredTerm(self.panel, self.coefficients, self.row_scale[rows])

    def value(self, rows: slice, first: int) -> FloatPanel:
        """Rows of the term, (rows, l); ``first`` is the row at which the row scale starts."""
        block = self.panel.read(rows)
        if isinstance(self.coefficients, Columns):
            value = block[:, self.coefficients.index] * self.coefficients.weight
        elif isinstance(self.coefficients, float):
            value = block * np.float32(self.coefficients)
        else:
            value = block @ self.coefficients
        if self.row_scale is not None:
            value *= self.row_scale[rows.start - first : rows.stop - first, None]
        return value


Expression = tuple[StoredTerm, ...]


class ClusterPanel:
    """A panel of :class:`ClusterPanels`: stored, or a combination of stored ones."""

    def __init__(self, columns: int, n: int, expression: Expression, held: Sequence[Any]) -> None:
        self.shape = (n, columns)
        self.expression = expression
        self.file: PanelFile | None = None
        self.read_once = False
        self._held = held

    def settle(self, file: PanelFile) -> None:
        """Be the stored panel from now on, and let go of what it was combined from."""
        self.file = file
        self.expression = (StoredTerm(file, 1.0, None),)
        self._held = ()


class ClusterPanels:
    """The algebra of panels on a cluster.

    Parameters
    ----------
    client : of the cluster
    folder : on storage that driver and workers share; panels are kept in a new folder inside it
    ranges : how the rows are cut
    threads : of all workers together, as planned: what is summed together depends on it, so that a
        worker that is lost or gained on the way changes no bit
    """

    def __init__(self, client: Client, folder: Path, ranges: RowRanges, threads: int) -> None:
        self.client = client
        self.ranges = ranges
        self.threads = threads
        # A task of an earlier attempt may still be writing: its names are its own.
        self.folder = Path(tempfile.mkdtemp(dir=folder, prefix="panels-"))
        self._number = 0
        self._released: list[Path] = []

    @property
    def n(self) -> int:
        """Rows of every panel."""
        return self.ranges.n

    @property
    def precision(self) -> float:
        """Spacing of the stored numbers at 1."""
        return float(np.finfo(np.float32).eps)

    def start(self, columns: int, *, first: int = 0) -> ClusterPanel:
        """Columns ``first`` to ``first + columns`` of the start pattern, (n, columns)."""
        return self.adopt(
            self.written(columns, start_rows, lambda _: range(first, first + columns))
        )

    def inner(self, left: ClusterPanel, right: ClusterPanel) -> FloatArray:
        """AᵀB, (n, k) and (n, l) → (k, l) float64."""
        parts = self._reduce("inner", inner_rows, left, right)
        total: FloatArray = np.sum(parts, axis=0)
        return total

    def row_inner(self, left: ClusterPanel, right: ClusterPanel) -> FloatArray:
        """⟨Aᵢ, Bᵢ⟩ for every row i, two (n, k) → (n,) float64."""
        return np.concatenate(self._reduce("row-inner", row_inner_rows, left, right))

    def combine(self, terms: Sequence[Term[ClusterPanel]]) -> ClusterPanel:
        """Σ Diag(s)·A·C over the terms, → (n, l); evaluated when it is read."""
        if not terms:
            raise ParameterError("a combination of no panels was asked for, expected at least one")
        expression = tuple(
            StoredTerm(
                self.stored(term.panel),
                _compact(term.coefficients),
                None if term.row_scale is None else term.row_scale.astype(np.float32),
            )
            for term in terms
        )
        held = [term.panel for term in terms]
        return ClusterPanel(expression[0].columns, self.n, expression, held)

    def stored(self, panel: ClusterPanel) -> PanelFile:
        """The file of a panel, which is written first where it was deferred."""
        if panel.file is None:
            self._settle(panel, self._evaluated(panel))
        assert panel.file is not None  # noqa: S101 (narrows the type)
        return panel.file

    def adopt(self, file: PanelFile) -> ClusterPanel:
        """A panel that is stored already; its file is removed once nothing refers to the panel."""
        panel = ClusterPanel(file.columns, self.n, (), ())
        self._settle(panel, file)
        return panel

    def written(
        self,
        columns: int,
        function: Callable[[tuple[PanelFile, Any], int], Any],
        arguments: Callable[[slice], Any],
    ) -> PanelFile:
        """A new panel whose row ranges are written by ``function((file, arguments(rows)), range)``.

        Panels that nothing refers to any more are removed first.
        """
        self._remove_released()
        folder = self.new_folder()
        file = PanelFile(folder, self.ranges, columns)
        self._run(f"panel-{folder.name}", function, lambda rows: (file, arguments(rows)))
        return file

    def new_folder(self) -> Path:
        """An empty folder of a name that was never used before."""
        folder = self.folder / str(self._number)
        folder.mkdir(mode=0o700)
        self._number += 1
        return folder

    def _evaluated(self, panel: ClusterPanel) -> PanelFile:
        return self.written(
            panel.shape[1], combine_rows, lambda rows: _for_rows(panel.expression, rows)
        )

    def _settle(self, panel: ClusterPanel, file: PanelFile) -> None:
        panel.settle(file)
        # Files outlive the process: a checkpoint may refer to them.
        weakref.finalize(panel, self._released.append, file.folder).atexit = False

    def _remove_released(self) -> None:
        while self._released:
            shutil.rmtree(self._released.pop(), ignore_errors=True)

    def _reduce(
        self,
        name: str,
        function: Callable[[Any, int], Any],
        left: ClusterPanel,
        right: ClusterPanel,
    ) -> list[FloatArray]:
        first = self._readable(left)
        second = None if right is left else self._readable(right)
        self._number += 1
        return self._run(
            f"{name}-{self._number}",
            function,
            lambda rows: (
                rows,
                _for_rows(first, rows),
                None if second is None else _for_rows(second, rows),
            ),
        )

    def _readable(self, panel: ClusterPanel) -> Expression:
        """What a reduction evaluates: a deferred panel the first time, a stored one after that."""
        if panel.file is None and panel.read_once:
            self.stored(panel)
        panel.read_once = True
        return panel.expression

    def _run(
        self, name: str, function: Callable[[Any, int], Any], job: Callable[[slice], Any]
    ) -> list[Any]:
        """The results of one task for each row range, in the order of the rows."""
        jobs = [job(self.ranges.span(index)) for index in range(self.ranges.count)]
        return run_at_once(self.client, name, function, jobs)


def start_rows(job: tuple[PanelFile, range], index: int) -> None:
    """Write one row range of the start pattern."""
    file, columns = job
    chunks = (
        start_pattern(range(rows.start, rows.stop), columns).astype(np.float32)
        for rows in chunks_of(file.ranges.span(index))
    )
    file.write(index, chunks)


def combine_rows(job: tuple[PanelFile, Expression], index: int) -> None:
    """Write one row range of a combination."""
    file, expression = job
    with one_thread():
        file.write(index, evaluated(expression, file.ranges.span(index)))


def inner_rows(job: tuple[slice, Expression, Expression | None], _: int) -> FloatArray:
    """AᵀB over one row range, (k, l) float64."""
    rows, left, right = job
    total: FloatArray | None = None
    with one_thread():
        for first, second in _pairs(left, right, rows):
            part = first.T @ second
            total = part if total is None else np.add(total, part, out=total)
    assert total is not None  # noqa: S101 (a row range has rows)
    return total


def row_inner_rows(job: tuple[slice, Expression, Expression | None], _: int) -> FloatArray:
    """⟨Aᵢ, Bᵢ⟩ over one row range, (rows,) float64."""
    rows, left, right = job
    with one_thread():
        parts = [
            np.einsum("ij,ij->i", first, second) for first, second in _pairs(left, right, rows)
        ]
    return np.concatenate(parts)


def evaluated(expression: Expression, rows: slice) -> Iterator[FloatPanel]:
    """The rows of a combination, chunk by chunk."""
    for chunk in chunks_of(rows):
        total = expression[0].value(chunk, rows.start)
        for term in expression[1:]:
            total += term.value(chunk, rows.start)
        yield total


def _pairs(
    left: Expression, right: Expression | None, rows: slice
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Chunks of both panels in float64; the same array twice where they are one panel."""
    if right is None:
        for chunk in evaluated(left, rows):
            wide = chunk.astype(np.float64)
            yield wide, wide
        return
    for first, second in zip(evaluated(left, rows), evaluated(right, rows), strict=True):
        yield first.astype(np.float64), second.astype(np.float64)


def _for_rows(expression: Expression, rows: slice) -> Expression:
    return tuple(term.for_rows(rows) for term in expression)


def _compact(coefficients: FloatArray | float) -> NDArray[np.float32] | Columns | float:
    """Coefficients as tasks get them: by columns where each has one number at most."""
    if not isinstance(coefficients, np.ndarray):
        return float(coefficients)
    nonzero = coefficients != 0.0
    if coefficients.shape[0] == 0 or (nonzero.sum(axis=0) > 1).any():
        return coefficients.astype(np.float32)
    index = nonzero.argmax(axis=0)
    weight = coefficients[index, np.arange(coefficients.shape[1])]
    return Columns(index, weight.astype(np.float32))
