"""How a noisy matrix is cut into blocks: index arithmetic in Python integers, nothing else.

A Gram matrix is cut into a packed upper triangle of square blocks, the scores of public queries
into a rectangle of blocks. Stores, tasks and plans know a geometry by the protocol alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Geometry(Protocol):
    """A matrix cut into blocks that are numbered from 0 and all stored in one shape."""

    @property
    def count(self) -> int:
        """Number of blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a stored block; blocks at an edge are padded to it."""

    def region(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of the matrix that block ``index`` covers."""


@dataclass(frozen=True)
class Triangle:
    """The upper triangle of an n × n matrix, cut into blocks of ``side`` rows and columns.

    Block (i, j), i ≤ j, has packed index j(j+1)/2 + i.
    """

    n: int
    side: int

    @property
    def per_side(self) -> int:
        """Blocks along one side of the matrix."""
        return -(-self.n // self.side)

    @property
    def count(self) -> int:
        """Blocks in the triangle, the diagonal included."""
        return self.per_side * (self.per_side + 1) // 2

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a stored block."""
        return self.side, self.side

    def index(self, i: int, j: int) -> int:
        """Packed index of block (i, j)."""
        if not 0 <= i <= j < self.per_side:
            raise IndexError(f"no block ({i}, {j}) in a triangle of {self.per_side} a side")
        return j * (j + 1) // 2 + i

    def position(self, index: int) -> tuple[int, int]:
        """Block (i, j) of a packed index."""
        if not 0 <= index < self.count:
            raise IndexError(f"no block {index} among {self.count}")
        j = (math.isqrt(8 * index + 1) - 1) // 2
        return index - j * (j + 1) // 2, j

    def span(self, i: int) -> slice:
        """Rows (or columns) of the matrix that block row (or column) ``i`` covers."""
        return slice(i * self.side, min((i + 1) * self.side, self.n))

    def region(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of the matrix that a block covers."""
        i, j = self.position(index)
        return self.span(i), self.span(j)


@dataclass(frozen=True)
class Rectangle:
    """An m × n matrix, cut into blocks of ``rows`` × ``columns``.

    Blocks are numbered down the columns, so that neighbouring tasks read the same records.
    """

    m: int
    n: int
    rows: int
    columns: int

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self._down * -(-self.n // self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a stored block."""
        return self.rows, self.columns

    def region(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of the matrix that a block covers."""
        if not 0 <= index < self.count:
            raise IndexError(f"no block {index} among {self.count}")
        across, down = divmod(index, self._down)
        top, left = down * self.rows, across * self.columns
        return (
            slice(top, min(top + self.rows, self.m)),
            slice(left, min(left + self.columns, self.n)),
        )

    @property
    def _down(self) -> int:
        return -(-self.m // self.rows)
