"""The values of a release: digests, symmetry, range, agreement with the factor, feasibility.

Of scores the range alone is promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.check import Check, Listener
from pipeline.reader.feasibility import feasibility_check
from pipeline.storage import arrays, ids
from pipeline.storage.layout import IDS
from pipeline.storage.place import Place
from scoreshield.manifest.schema import Manifest
from scoreshield.mechanisms.released import entry_rounding, squared_norms, verified_limit


def value_checks(store: Place, manifest: Manifest, tell: Listener) -> Iterator[Check]:
    opened = {name: arrays.open_for_reading(store, name) for name in manifest.arrays}
    for done, (name, array) in enumerate(sorted(opened.items()), start=1):
        yield _digest(name, array, manifest)
        tell("digests", done, len(opened))
    if "factor" in opened:
        yield from _factor_checks(opened["factor"], opened["diagonal"])
    if "gram" in opened:
        yield from _gram_checks(opened["gram"], opened.get("factor"), manifest, tell)
    if "scores" in opened:
        yield _scores_range(opened["scores"], manifest, tell)
    if IDS in opened:
        yield _ids_are_labels(opened[IDS])


def _digest(name: str, array: Any, manifest: Manifest) -> Check:
    found, expected = arrays.array_digest(array), manifest.arrays[name].sha256
    if found != expected:
        detail = f"SHA-256 is {found}, the manifest says {expected}: values were changed"
        return Check(f"digest of {name}", False, detail, found)
    return Check(f"digest of {name}", True, f"SHA-256 {found}", found)


def _ids_are_labels(array: Any) -> Check:
    """Every record has an id: printable text, within its length, and no other record's."""
    found, distinct = [], ids.Distinct()
    for rows in arrays.row_panels(array):
        texts = ids.decode(arrays.read_ids(array, rows))
        distinct.add(texts)
        for kind, marked in ids.faults(texts).items():
            found += [f"{row} has {kind}" for row in _rows_named(marked, rows)]
    whole = slice(0, array.shape[0])
    found += [
        f"{row} has the id of an earlier row" for row in _rows_named(distinct.repeated(), whole)
    ]
    return Check.of_faults("ids", found, "distinct printable text, one a record")


def _scores_range(scores: Any, manifest: Manifest, tell: Listener) -> Check:
    """Every score lies in the range that the manifest names; reading it checks it is finite."""
    low, high = (np.float32(end) for end in manifest.mechanism.score_range)
    rows, whole = scores.chunks[0], slice(0, scores.shape[1])
    faults = []
    panels = list(arrays.row_panels(scores))
    for done, panel in enumerate(panels, start=1):
        values = arrays.read(scores, (panel, whole))
        for row in np.flatnonzero((values.min(axis=1) < low) | (values.max(axis=1) > high)):
            query = panel.start + int(row)
            faults.append(f"query {query} (scores/c/{query // rows}) has a score outside")
        tell("range of scores", done, len(panels))
    return Check.of_faults("scores range", faults, f"entries in [{low:g}, {high:g}]")


def _factor_checks(factor: Any, diagonal: Any) -> Iterator[Check]:
    """‖Fᵢ‖² ≤ 1 exactly, dᵢ ≥ 0, and ‖Fᵢ‖² + dᵢ = 1 to float32."""
    limit = verified_limit(factor.shape[1])
    long: list[str] = []
    negative: list[str] = []
    incomplete: list[str] = []
    for rows in arrays.row_panels(factor):
        norms = squared_norms(arrays.read(factor, (rows, slice(0, factor.shape[1]))))
        rest = arrays.read(diagonal, (rows,)).astype(np.float64)
        long += _rows_named(~(norms <= limit), rows)
        negative += _rows_named(rest < 0, rows)
        incomplete += _rows_named(np.abs(norms + rest - 1) > 2.0**-22, rows)
    yield Check.of_faults("factor norms", long, "every row has norm at most 1")
    yield Check.of_faults("diagonal", negative, "non-negative")
    yield Check.of_faults("unit diagonal", incomplete, "norm squared + diagonal = 1 within 2^-22")


def _rows_named(offending: NDArray[np.bool_], rows: slice) -> list[str]:
    return [f"row {rows.start + int(row)}" for row in np.flatnonzero(offending)]


@dataclass
class _GramFaults:
    """What the blocks of a Gram matrix were found guilty of, and how far F·Fᵀ is from them."""

    diagonal: list[str] = field(default_factory=list)
    symmetry: list[str] = field(default_factory=list)
    range: list[str] = field(default_factory=list)
    agreement: list[str] = field(default_factory=list)
    squared_distance: float = 0.0

    def inspect(self, block: _Block, mirror: NDArray[np.float32]) -> None:
        """Look at a block and its counterpart on the other side of the diagonal."""
        name, values = block.name, block.values
        # Bit patterns: 0.0 and -0.0 are equal as numbers and differ as bytes.
        if not np.array_equal(values.view(np.uint32), mirror.T.copy().view(np.uint32)):
            self.symmetry.append(f"{name} is not the mirror of its counterpart")
        if block.on_diagonal and not (np.diagonal(values) == 1.0).all():
            self.diagonal.append(f"{name} has a diagonal entry other than 1")
        if np.abs(values).max() > 1.0 or np.abs(mirror).max() > 1.0:
            self.range.append(f"{name} or its mirror has an entry outside [-1, 1]")

    def compare(self, block: _Block, product: NDArray[np.float64], rank: int) -> None:
        """Compare a block with the product of the factor's rows."""
        difference = block.values - product
        if block.on_diagonal:
            np.fill_diagonal(difference, 0.0)
        largest = float(np.abs(difference).max())
        if largest > entry_rounding(rank):
            self.agreement.append(
                f"{block.name} differs from the factor's product by {largest:.3g}"
            )
        # A block above the diagonal stands for its mirror too.
        self.squared_distance += (1 if block.on_diagonal else 2) * float(np.sum(difference**2))


class _Block(NamedTuple):
    """A block on or above the diagonal."""

    name: str
    values: NDArray[np.float32]
    on_diagonal: bool


def _gram_checks(gram: Any, factor: Any, manifest: Manifest, tell: Listener) -> Iterator[Check]:
    found = _inspect_gram(gram, factor, tell)
    yield Check.of_faults("gram diagonal", found.diagonal, "exactly 1")
    yield Check.of_faults("gram symmetry", found.symmetry, "bitwise symmetric")
    yield Check.of_faults("gram range", found.range, "entries in [-1, 1]")
    n = gram.shape[0]
    if factor is not None:
        rank = factor.shape[1]
        rounding = f"within {entry_rounding(rank):.3g}, the rounding to float32"
        yield Check.of_faults("gram agrees with factor", found.agreement, rounding)
        # gram = F·Fᵀ + Diag(1 − ‖Fᵢ‖²) + E with the first two PSD, so λ_min ≥ −‖E‖_F (Weyl).
        bound = math.sqrt(found.squared_distance) + n * (rank + 2) * 2.0**-53
        detail = f"at least -{bound:.3g} = -||gram - F F^T|| off the diagonal, since F F^T is PSD"
        yield Check("smallest eigenvalue", not found.agreement, detail, -bound)
    elif not found.symmetry:
        yield feasibility_check(gram, manifest, tell)


def _inspect_gram(gram: Any, factor: Any, tell: Listener) -> _GramFaults:
    faults = _GramFaults()
    side, n = gram.chunks[0], gram.shape[0]
    per_side = -(-n // side)
    spans = [slice(i * side, min((i + 1) * side, n)) for i in range(per_side)]
    total = per_side * (per_side + 1) // 2
    done = 0
    for i, rows in enumerate(spans):
        left = None if factor is None else _factor_rows(factor, rows)
        for j in range(i, per_side):
            columns = spans[j]
            block = _Block(f"gram/c/{i}/{j}", arrays.read(gram, (rows, columns)), i == j)
            faults.inspect(block, block.values if i == j else arrays.read(gram, (columns, rows)))
            if left is not None:
                faults.compare(block, left @ _factor_rows(factor, columns).T, factor.shape[1])
            done += 1
            tell("gram blocks", done, total)
    return faults


def _factor_rows(factor: Any, rows: slice) -> NDArray[np.float64]:
    return arrays.read(factor, (rows, slice(0, factor.shape[1]))).astype(np.float64)
