"""Checking a published release from its bytes alone, and naming what is wrong.

Four stages, each run only where the one before found nothing: the manifest, its signature and its
place; its numbers; the files of the store; and the values (digests, symmetry, range, agreement with
the factor, feasibility; range alone for scores). Nothing here needs the gallery, the ledger or a
key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure, in_words
from pipeline.publish.signing import check_signature
from pipeline.reader.manifest_file import (
    check_attributes,
    check_directory,
    check_layout,
    check_metadata,
    check_name,
    read_manifest,
)
from pipeline.storage import arrays, ids
from pipeline.storage.layout import IDS, METADATA, RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, place_of
from pipeline.storage.plain_files import plain_file_faults, plain_file_sizes
from scoreshield.manifest.numbers import number_faults
from scoreshield.manifest.schema import Manifest
from scoreshield.mechanisms.released import entry_rounding, squared_norms, verified_limit
from scoreshield.printable import printable

Progress = Callable[[str, int, int], None]
"""Called with what is being checked, how much of it is done, and how much there is."""

DENSE_LIMIT = 5000
"""Largest n whose smallest eigenvalue is computed from the full spectrum."""
_LANCZOS_PASSES = 300
_SHOWN_FAULTS = 5


@dataclass(frozen=True)
class Check:
    """One thing that was checked: its name, whether it holds, and what was found."""

    name: str
    ok: bool
    detail: str

    def __post_init__(self) -> None:
        # Details quote names of files and fields, which an attacker chose.
        object.__setattr__(self, "detail", printable(self.detail))


@dataclass(frozen=True)
class VerificationReport:
    """All checks of one release, in the order in which they were made."""

    checks: tuple[Check, ...]
    not_private_reason: str | None = None
    """Why the release is NOT PRIVATE, as its manifest says; None where it claims a guarantee."""

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    @property
    def faults(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.ok)

    def require(self) -> None:
        """Raise IntegrityFailure, naming every fault, unless all checks hold."""
        if not self.ok:
            raise IntegrityFailure(
                "; ".join(f"{check.name}: {check.detail}" for check in self.faults)
            )


def verify_release(
    path: str | os.PathLike[str] | ObjectPath,
    expected_public_key: str | None = None,
    progress: Progress | None = None,
    expected_queries: str | None = None,
) -> VerificationReport:
    """Check a release directory; faults are in the report, not raised.

    Parameters
    ----------
    path : release directory, a path or a URL
    expected_public_key : hexadecimal Ed25519 key that must have signed; None accepts any
    progress : called as blocks are checked
    expected_queries : SHA-256 of the fixed-point queries that scores must be of; None accepts any

    Raises
    ------
    ConfigurationError
        ``expected_public_key`` is not a key.
    """
    folder = place_of(path)
    tell = progress or _silent
    try:
        manifest = read_manifest(folder)
    except IntegrityFailure as error:
        return VerificationReport((Check("manifest", False, str(error)),))
    checks = [
        Check("manifest", True, f"release {manifest.release_id}, schema 1"),
        _signature(manifest, expected_public_key),
        _place(folder, manifest),
        _folder(folder),
        _attributes(folder, manifest),
        *_queries(manifest, expected_queries),
    ]
    stages: tuple[Callable[[Place, Manifest, Progress], Iterator[Check]], ...] = (
        _numbers,
        _stored,
        _values,
    )
    for stage in stages:
        if all(check.ok for check in checks):
            checks += stage(folder / RELEASE_STORE, manifest, tell)
    return VerificationReport(tuple(checks), manifest.not_private_reason)


def _signature(manifest: Manifest, expected: str | None) -> Check:
    try:
        key = check_signature(manifest, expected)
    except IntegrityFailure as error:
        return Check("signature", False, str(error))
    trust = "as expected" if expected else "compare it with one you trust"
    return Check("signature", True, f"Ed25519 by key {key}, {trust}")


def _place(folder: Place, manifest: Manifest) -> Check:
    try:
        check_name(folder, manifest)
    except IntegrityFailure as error:
        return Check("name", False, str(error))
    return Check("name", True, "the folder is called what the release is called")


def _folder(folder: Place) -> Check:
    try:
        check_directory(folder)
    except IntegrityFailure as error:
        return Check("folder", False, str(error))
    return Check("folder", True, "holds the manifest and the store, nothing else")


def _attributes(folder: Place, manifest: Manifest) -> Check:
    try:
        check_attributes(folder, manifest)
    except IntegrityFailure as error:
        return Check("attributes", False, str(error))
    return Check("attributes", True, "the store's copy of the manifest is the same")


def _queries(manifest: Manifest, expected: str | None) -> Iterator[Check]:
    found = manifest.queries_sha256
    if expected is None:
        return
    if found is None:
        yield Check("queries", False, f"a release of regime {manifest.regime} names no queries")
    elif found != expected:
        yield Check("queries", False, f"SHA-256 is {found}, that of the given queries {expected}")
    else:
        yield Check("queries", True, f"the scores are of the given queries, SHA-256 {found}")


def _numbers(store: Place, manifest: Manifest, tell: Progress) -> Iterator[Check]:
    fine = "the manifest's numbers follow from its sizes, noise and adjacency"
    yield _summary("numbers agree", number_faults(manifest), fine)


def _stored(store: Place, manifest: Manifest, tell: Progress) -> Iterator[Check]:
    """Metadata, the exact set of files, and the checksum of every chunk."""
    try:
        check_layout(manifest)
        for name, record in manifest.arrays.items():
            check_metadata(store, name, record)
        opened = {name: arrays.open_for_reading(store, name) for name in manifest.arrays}
    except IntegrityFailure as error:
        yield Check("metadata", False, str(error))
        return
    yield Check("metadata", True, f"arrays {', '.join(sorted(opened)) or 'none'} as described")
    try:
        faults = _file_faults(store, opened)
    except IntegrityFailure as error:
        faults = [str(error)]
    yield _summary("files", faults, "no file is missing, extra or cut short")
    if faults:
        return
    faults = [fault for name in opened for fault in _chunk_faults(name, opened[name], tell)]
    yield _summary("checksums", faults, "every chunk passes its crc32c and is finite")


def _file_faults(store: Place, opened: dict[str, Any]) -> list[str]:
    sizes = {
        f"{name}/{file}": arrays.chunk_bytes(array)
        for name, array in opened.items()
        for file in arrays.chunk_files(array)
    }
    metadata = {METADATA} | {f"{name}/{METADATA}" for name in opened}
    faults = plain_file_faults(store, metadata | set(sizes))
    # One that is not there is a fault already.
    for file, size in plain_file_sizes(store, sizes).items():
        if size != sizes[file]:
            faults.append(f"{file} has {size} bytes, expected {sizes[file]}")
    return faults


def _chunk_faults(name: str, array: Any, tell: Progress) -> Iterator[str]:
    files = arrays.chunk_files(array)
    for done, file in enumerate(files, start=1):
        position = [int(part) for part in file.split("/")[1:]]
        region = tuple(
            slice(k * chunk, min((k + 1) * chunk, size))
            for k, chunk, size in zip(position, array.chunks, array.shape, strict=True)
        )
        try:
            _read_chunk(name, array, region)
        except IntegrityFailure as error:
            yield f"{name}/{file}: {in_words(error)}"
        tell(f"checksums of {name}", done, len(files))


def _read_chunk(name: str, array: Any, region: tuple[slice, ...]) -> None:
    if name == IDS:
        arrays.read_ids(array, region[0])
    else:
        arrays.read(array, region)


def _values(store: Place, manifest: Manifest, tell: Progress) -> Iterator[Check]:
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
        return Check(f"digest of {name}", False, detail)
    return Check(f"digest of {name}", True, f"SHA-256 {found}")


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
    return _summary("ids", found, "distinct printable text, one a record")


def _scores_range(scores: Any, manifest: Manifest, tell: Progress) -> Check:
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
    return _summary("scores range", faults, f"entries in [{low:g}, {high:g}]")


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
    yield _summary("factor norms", long, "every row has norm at most 1")
    yield _summary("diagonal", negative, "non-negative")
    yield _summary("unit diagonal", incomplete, "norm squared + diagonal = 1 within 2^-22")


def _rows_named(offending: NDArray[np.bool_], rows: slice) -> list[str]:
    return [f"row {rows.start + int(row)}" for row in np.flatnonzero(offending)]


@dataclass
class _GramFaults:
    """What the blocks of a Gram matrix were found guilty of, and how far F·Fᵀ is from them."""

    diagonal: list[str]
    symmetry: list[str]
    range: list[str]
    agreement: list[str]
    squared_distance: float


def _gram_checks(gram: Any, factor: Any, manifest: Manifest, tell: Progress) -> Iterator[Check]:
    found = _inspect_gram(gram, factor, tell)
    yield _summary("gram diagonal", found.diagonal, "exactly 1")
    yield _summary("gram symmetry", found.symmetry, "bitwise symmetric")
    yield _summary("gram range", found.range, "entries in [-1, 1]")
    n = gram.shape[0]
    if factor is not None:
        rank = factor.shape[1]
        rounding = f"within {entry_rounding(rank):.3g}, the rounding to float32"
        yield _summary("gram agrees with factor", found.agreement, rounding)
        # gram = F·Fᵀ + Diag(1 − ‖Fᵢ‖²) + E with the first two PSD, so λ_min ≥ −‖E‖_F (Weyl).
        bound = math.sqrt(found.squared_distance) + n * (rank + 2) * 2.0**-53
        detail = f"at least -{bound:.3g} = -||gram - F F^T|| off the diagonal, since F F^T is PSD"
        yield Check("smallest eigenvalue", not found.agreement, detail)
    elif not found.symmetry:
        yield _smallest_eigenvalue(gram, manifest, tell)


def _inspect_gram(gram: Any, factor: Any, tell: Progress) -> _GramFaults:
    faults = _GramFaults([], [], [], [], 0.0)
    side, n = gram.chunks[0], gram.shape[0]
    per_side = -(-n // side)
    spans = [slice(i * side, min((i + 1) * side, n)) for i in range(per_side)]
    total = per_side * (per_side + 1) // 2
    done = 0
    for i, rows in enumerate(spans):
        left = None if factor is None else _factor_rows(factor, rows)
        for j in range(i, per_side):
            columns, name = spans[j], f"gram/c/{i}/{j}"
            block = arrays.read(gram, (rows, columns))
            mirror = block if i == j else arrays.read(gram, (columns, rows))
            _inspect_block(faults, name, block, mirror, on_diagonal=i == j)
            if left is not None:
                product = left @ _factor_rows(factor, columns).T
                _compare(faults, name, block, product, factor.shape[1], on_diagonal=i == j)
            done += 1
            tell("gram blocks", done, total)
    return faults


def _factor_rows(factor: Any, rows: slice) -> NDArray[np.float64]:
    return arrays.read(factor, (rows, slice(0, factor.shape[1]))).astype(np.float64)


def _inspect_block(
    faults: _GramFaults,
    name: str,
    block: NDArray[np.float32],
    mirror: NDArray[np.float32],
    *,
    on_diagonal: bool,
) -> None:
    # Bit patterns: 0.0 and -0.0 are equal as numbers and differ as bytes.
    if not np.array_equal(block.view(np.uint32), mirror.T.copy().view(np.uint32)):
        faults.symmetry.append(f"{name} is not the mirror of its counterpart")
    if on_diagonal and not (np.diagonal(block) == 1.0).all():
        faults.diagonal.append(f"{name} has a diagonal entry other than 1")
    if np.abs(block).max() > 1.0 or np.abs(mirror).max() > 1.0:
        faults.range.append(f"{name} or its mirror has an entry outside [-1, 1]")


def _compare(
    faults: _GramFaults,
    name: str,
    block: NDArray[np.float32],
    product: NDArray[np.float64],
    rank: int,
    *,
    on_diagonal: bool,
) -> None:
    difference = block - product
    if on_diagonal:
        np.fill_diagonal(difference, 0.0)
    largest = float(np.abs(difference).max())
    if largest > entry_rounding(rank):
        faults.agreement.append(f"{name} differs from the factor's product by {largest:.3g}")
    # A block above the diagonal stands for its mirror too.
    faults.squared_distance += (1 if on_diagonal else 2) * float(np.sum(difference**2))


def _smallest_eigenvalue(gram: Any, manifest: Manifest, tell: Progress) -> Check:
    n = gram.shape[0]
    # The projected matrix is PSD and each entry was rounded to float32: λ_min ≥ −‖E‖_F.
    rank = manifest.post_processing.rank or n
    bound = math.sqrt(n * (n - 1)) * entry_rounding(rank)
    claimed = manifest.post_processing.feasible
    if n <= DENSE_LIMIT:
        smallest, how = _dense_smallest(gram)
    else:
        smallest, how = _lanczos_smallest(gram, 1e-6 if claimed else 1e-2, tell)
    found = f"{smallest:.6g} ({how})"
    if not claimed:
        return Check("smallest eigenvalue", True, f"{found}; feasibility is not claimed")
    ok = smallest >= -bound
    return Check("smallest eigenvalue", ok, f"{found}, expected at least -{bound:.3g}")


def _dense_smallest(gram: Any) -> tuple[float, str]:
    n = gram.shape[0]
    matrix = np.empty((n, n))
    for rows in arrays.row_panels(gram):
        matrix[rows] = arrays.read(gram, (rows, slice(0, n)))
    values = scipy.linalg.eigh(
        matrix, eigvals_only=True, overwrite_a=True, check_finite=False, driver="evr"
    )
    return float(values[0]), "from the full spectrum"


def _lanczos_smallest(gram: Any, tolerance: float, tell: Progress) -> tuple[float, str]:
    """λ_min of the stored matrix by Lanczos on I − G, a pass over the store a product.

    The shift by 1 makes the stopping tolerance an absolute one, however small λ_min is.
    """
    n = gram.shape[0]
    passes = 0

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal passes
        passes += 1
        tell("passes for the smallest eigenvalue", passes, _LANCZOS_PASSES)
        flat = vector.reshape(n)
        result = flat.copy()
        for rows in arrays.row_panels(gram):
            result[rows] -= arrays.read(gram, (rows, slice(0, n))) @ flat
        return result

    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=product, dtype=np.float64)
    # A fixed start keeps the report reproducible; it has a part along every eigenvector but for
    # a set of measure zero.
    start = np.cos(np.arange(n) * math.sqrt(2.0))
    try:
        values = scipy.sparse.linalg.eigsh(
            operator,
            k=1,
            which="LA",
            v0=start,
            tol=tolerance,
            maxiter=_LANCZOS_PASSES // 10,
            return_eigenvectors=False,
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        return _rayleigh(product, start), f"Lanczos did not settle in {passes} passes; upper bound"
    return 1.0 - float(values[-1]), f"Lanczos estimate, {passes} passes"


def _rayleigh(
    product: Callable[[NDArray[np.float64]], NDArray[np.float64]], vector: NDArray[np.float64]
) -> float:
    return 1.0 - float(vector @ product(vector)) / float(vector @ vector)


def _summary(name: str, faults: list[str], fine: str) -> Check:
    if not faults:
        return Check(name, True, fine)
    shown = "; ".join(faults[:_SHOWN_FAULTS]) + ("; ..." if len(faults) > _SHOWN_FAULTS else "")
    return Check(name, False, f"{len(faults)} fault(s): {shown}")


def _silent(stage: str, done: int, total: int) -> None:
    pass
