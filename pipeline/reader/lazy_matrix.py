"""The matrix of a published release, wherever its entries come from.

A dense Gram matrix, one that is multiplied out of its factor, or the scores of public queries. Each
is read by rectangles; nothing here knows a manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.storage import arrays
from pipeline.storage.place import Place
from scoreshield.mechanisms.released import gram_block


class Matrix(Protocol):
    """A released matrix, read lazily."""

    @property
    def name(self) -> str:
        """``gram`` or ``scores``."""

    @property
    def dimensions(self) -> tuple[str, str]:
        """What a row and a column stand for."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def chunks(self) -> tuple[int, int]:
        """Rows and columns that are read together."""

    @property
    def reflexive(self) -> bool:
        """Whether row i and column i are the same record, which then ranks no similarity."""

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """A rectangle (k, l) of the matrix."""


@dataclass(frozen=True)
class _Gram:
    """Similarities of the n records, in chunks as high as those of the stored array."""

    stored: Any
    name: str = "gram"
    dimensions: tuple[str, str] = ("record", "other_record")
    reflexive: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        n = int(self.stored.shape[0])
        return n, n

    @property
    def chunks(self) -> tuple[int, int]:
        """Of the stored array."""
        side = int(self.stored.chunks[0])
        return side, side


class DenseGram(_Gram):
    """A Gram matrix that was published as such."""

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Similarities (k, l) as published."""
        return arrays.read(self.stored, (rows, columns))


class FactorGram(_Gram):
    """A Gram matrix of which the factor alone was published."""

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Similarities (k, l), equal to those of the dense matrix up to 2^-24."""
        whole = slice(0, self.stored.shape[1])
        block = gram_block(
            arrays.read(self.stored, (rows, whole)), arrays.read(self.stored, (columns, whole))
        )
        shared = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
        block[shared - rows.start, shared - columns.start] = 1.0
        return block


@dataclass(frozen=True)
class Scores:
    """The scores of public queries against the records."""

    scores: Any
    name: str = "scores"
    dimensions: tuple[str, str] = ("query", "record")
    reflexive: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n)."""
        m, n = self.scores.shape
        return int(m), int(n)

    @property
    def chunks(self) -> tuple[int, int]:
        """Of the stored array."""
        rows, columns = self.scores.chunks
        return int(rows), int(columns)

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Scores (k, l) as published."""
        return arrays.read(self.scores, (rows, columns))


VIEWS: dict[str, Callable[[Any], Matrix]] = {
    "scores": Scores,
    "gram": DenseGram,
    "factor": FactorGram,
}
"""How the matrix of a release is read, by its array; the first one that a release has counts."""


def open_matrix(store: Place, names: Collection[str]) -> Matrix:
    """The matrix of a release's store: its scores, its dense Gram matrix, or its factor.

    Parameters
    ----------
    names : the arrays that the release's manifest describes

    Raises
    ------
    IntegrityFailure
        The store does not have the array.
    """
    name = next(name for name in VIEWS if name in names)
    return VIEWS[name](arrays.open_for_reading(store, name))
