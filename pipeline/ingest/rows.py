"""Rows that cannot be normalised: found all, named first, before a gallery appears."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InputRejected

_SHOWN_ROWS = 5


@dataclass
class OffendingRows:
    """Numbers of the first few rows of one kind, and how many there are in all."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, offending: NDArray[np.bool_], start: int) -> None:
        """Count the marked rows of a panel whose first row is number ``start``."""
        found = np.flatnonzero(offending)
        self.count += found.size
        self.first += [start + int(row) for row in found[: _SHOWN_ROWS - len(self.first)]]

    @property
    def shown(self) -> str:
        """The numbers of the first few."""
        return ", ".join(map(str, self.first)) + (", ..." if self.count > len(self.first) else "")

    def __str__(self) -> str:
        return f"{self.count} {'row' if self.count == 1 else 'rows'} (counted from 0: {self.shown})"


def non_finite_rows(panel: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows (k,) hold NaN or an infinity."""
    if panel.dtype.kind != "f":
        return np.zeros(panel.shape[0], dtype=bool)
    return np.asarray(~np.isfinite(panel).all(axis=1))


def all_zero_rows(panel: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows (k,) are zero throughout, -0.0 included; a subnormal value is not zero."""
    return np.asarray(~(panel != 0).any(axis=1))


def refuse(name: str, n: int, non_finite: OffendingRows, zero: OffendingRows) -> None:
    """Raise InputRejected when any row was counted."""
    faults, advice = [], []
    if non_finite.count:
        faults.append(f"NaN or infinite values in {non_finite}")
        advice.append("Remove or repair the rows with NaN or infinite values.")
    if zero.count:
        faults.append(f"only zeros in {zero}")
        advice.append(
            "Remove the zero rows, or let --zero-rows substitute (zero_rows: in a configuration) "
            "map each to one fixed unit vector: a zero row has no direction."
        )
    if faults:
        raise InputRejected(
            f"{name}: found {' and '.join(faults)} of {n}; expected {n} finite, non-zero rows. "
            + " ".join(advice)
        )


@dataclass
class FaultyRows:
    """Rows that can't be read as embeddings of one length: what is wrong with which of them.

    Attributes
    ----------
    expected : what each row should hold, in words.
    """

    expected: str
    kinds: dict[str, OffendingRows] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Rows counted so far; one with two faults counts twice."""
        return sum(rows.count for rows in self.kinds.values())

    def add(self, kind: str, offending: NDArray[np.bool_], start: int) -> None:
        """Count the marked rows of a panel whose first row is number ``start``."""
        if offending.any():
            self.kinds.setdefault(kind, OffendingRows()).add(offending, start)

    def refuse(self, name: str, n: int) -> None:
        """Raise InputRejected when any row was counted."""
        if self.count:
            faults = " and ".join(f"{kind} in {rows}" for kind, rows in self.kinds.items())
            raise InputRejected(
                f"{name}: found {faults} of {n}; expected {self.expected}, in each row. Remove or "
                "repair these rows."
            )
