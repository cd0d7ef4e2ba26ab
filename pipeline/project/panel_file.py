"""Tall panels (n × k) on shared storage: float32 numbers in one file for each row range.

A row range is written whole, by one task, under a temporary name that is then replaced, so that a
repeated task leaves the same file and no reader ever sees half of one. Any rows can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure, in_words
from pipeline.plan.shares import CHUNK_ROWS, RowRanges
from pipeline.storage.durable import replacing, sync

FloatPanel = NDArray[np.float32]


@dataclass(frozen=True)
class PanelFile:
    """A stored panel.

    Attributes
    ----------
    folder : folder that holds one file for each row range
    ranges : how its rows are cut
    columns : k
    """

    folder: Path
    ranges: RowRanges
    columns: int

    def path(self, index: int) -> Path:
        """File of one row range."""
        return self.folder / f"{index}.f32"

    def read(self, rows: slice) -> FloatPanel:
        """Some rows, (rows, k).

        Raises
        ------
        IntegrityFailure
            A file is missing or cut short.
        """
        if self.ranges.rows and rows.stop <= self.ranges.span(rows.start // self.ranges.rows).stop:
            return self._read_within(rows)
        result = np.empty((rows.stop - rows.start, self.columns), dtype=np.float32)
        start = rows.start
        while start < rows.stop:
            stop = min(self.ranges.span(start // self.ranges.rows).stop, rows.stop)
            result[start - rows.start : stop - rows.start] = self._read_within(slice(start, stop))
            start = stop
        return result

    def write(self, index: int, chunks: Iterator[FloatPanel]) -> None:
        """Write one row range from its chunks of rows, top to bottom."""
        write_rows(self.path(index), chunks)

    def sync(self) -> None:
        """Make the panel survive a power cut."""
        for index in range(self.ranges.count):
            sync(self.path(index))

    def _read_within(self, rows: slice) -> FloatPanel:
        index = rows.start // self.ranges.rows
        first = rows.start - self.ranges.span(index).start
        return read_rows(
            self.path(index), slice(first, first + rows.stop - rows.start), self.columns
        )


def chunks_of(rows: slice) -> Iterator[slice]:
    """The rows in chunks that a task handles at once."""
    for start in range(rows.start, rows.stop, CHUNK_ROWS):
        yield slice(start, min(start + CHUNK_ROWS, rows.stop))


def write_rows(path: Path, chunks: Iterator[FloatPanel]) -> None:
    """Write a file of float32 rows under a temporary name, then give it its own."""
    with replacing(path) as file:
        for chunk in chunks:
            np.ascontiguousarray(chunk, dtype="<f4").tofile(file)


def read_rows(path: Path, rows: slice, columns: int) -> FloatPanel:
    """Some rows, counted from the top of the file, of a file of float32 rows.

    Raises
    ------
    IntegrityFailure
        The file is missing or cut short.
    """
    count = (rows.stop - rows.start) * columns
    try:
        values = np.fromfile(path, dtype="<f4", count=count, offset=4 * rows.start * columns)
    except OSError as error:
        raise IntegrityFailure(
            f"{path}: a part of a panel can't be read: {in_words(error)}"
        ) from error
    if values.size != count:
        raise IntegrityFailure(
            f"{path} holds {values.size} of the {count} numbers expected from row {rows.start} on; "
            "it was cut short or removed by something else"
        )
    panel: FloatPanel = values.reshape(rows.stop - rows.start, columns)
    return panel
