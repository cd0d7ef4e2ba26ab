"""Reading a published release lazily: a Gram matrix or the scores of public queries.

:func:`open_release` accepts only a directory with a valid signed manifest. Values are read as they
are asked for; each read checks checksums and that the values are finite, and ``scoreshield verify``
checks everything else.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError
from pipeline.publish.signing import check_signature
from pipeline.reader.lazy_matrix import Matrix, open_matrix
from pipeline.reader.manifest_file import check_store, read_manifest
from pipeline.storage import arrays, ids
from pipeline.storage.layout import IDS, RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, place_of
from scoreshield.errors import ParameterError
from scoreshield.manifest.schema import Manifest, to_json

if TYPE_CHECKING:
    import dask.array
    import xarray

_TOPK_SIDE = 1024
_LARGEST_COLUMN = 2**32 - 1


class NotPrivateWarning(UserWarning):
    """An opened release was made in test mode: it protects nobody's record."""


def open_release(
    path: str | os.PathLike[str] | ObjectPath, verify_key: str | None = None
) -> Release:
    """Open a release of either regime.

    Parameters
    ----------
    path : release directory, a path or a URL
    verify_key : hexadecimal Ed25519 public key that must have signed the manifest; None accepts
        any key, which finds damage but does not say who published

    Warns
    -----
    NotPrivateWarning
        The release was made in test mode.

    Raises
    ------
    IntegrityFailure
        There is no valid signed manifest, or the directory holds another store than the one that
        it describes, or more than that.
    ConfigurationError
        ``verify_key`` is not a key.
    """
    folder = place_of(path)
    manifest = read_manifest(folder)
    check_signature(manifest, verify_key)
    check_store(folder, manifest)
    store = folder / RELEASE_STORE
    opened = {name: arrays.open_for_reading(store, name) for name in manifest.arrays}
    if not manifest.private:
        warnings.warn(
            f"{folder} is NOT PRIVATE: {manifest.not_private_reason}",
            NotPrivateWarning,
            stacklevel=2,
        )
    return Release(folder, manifest, open_matrix(store, opened), opened)


@dataclass(frozen=True)
class Release:
    """A published release, read lazily.

    Its matrix is the Gram matrix (n, n) or, in regime scores, the scores (m, n) of m public queries
    against n records.

    Attributes
    ----------
    path : release directory
    manifest : what the release says of itself
    """

    path: Place
    manifest: Manifest
    _matrix: Matrix
    _opened: dict[str, Any]

    def __repr__(self) -> str:
        privacy = self.manifest.privacy
        private = "" if self.manifest.private else ", NOT PRIVATE"
        sizes = f"n={self.n}" if self.m is None else f"m={self.m}, n={self.n}"
        return (
            f"<Release {self.manifest.release_id}: {sizes}, "
            f"arrays={', '.join(sorted(self._opened))}, epsilon={privacy.epsilon:g}, "
            f"delta={privacy.delta:g}, adjacency={privacy.adjacency}{private}>"
        )

    @property
    def n(self) -> int:
        """Number of records."""
        return self.manifest.shape.n

    @property
    def m(self) -> int | None:
        """Number of queries; None for a Gram release."""
        return self.manifest.shape.m

    @property
    def scores(self) -> Any:
        """The scores (m, n) as a lazy Zarr array; slice it to read."""
        return self._array("scores")

    @property
    def factor(self) -> Any:
        """The factor (n, r) as a lazy Zarr array; slice it to read."""
        return self._array("factor")

    @property
    def diagonal(self) -> Any:
        """The completion of the diagonal (n,) as a lazy Zarr array: 1 − ‖factorᵢ‖²."""
        return self._array("diagonal")

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the n records, in the order of their rows.

        Raises
        ------
        ConfigurationError
            The release was published without ids.
        """
        if IDS not in self._opened:
            raise ConfigurationError(
                f"release {self.manifest.release_id} has no ids; its gallery was ingested without "
                "--public-ids (public_ids: in a configuration)"
            )
        array = self._array(IDS)
        return tuple(
            text
            for rows in arrays.row_panels(array)
            for text in ids.decode(arrays.read_ids(array, rows))
        )

    def positions(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Row numbers (k,) of the records with these ids, for :meth:`block` and :meth:`topk`.

        Raises
        ------
        ParameterError
            No record has one of the ids; the first of them is named.
        """
        known = self._positions
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ParameterError(
                f"{len(unknown)} of {len(names)} ids belong to no record of release "
                f"{self.manifest.release_id}, the first is {unknown[0]!r}"
            )
        return np.array([known[name] for name in names], dtype=np.int64)

    def rows_of(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Similarities (k, n) of the records with these ids with all records; Gram releases only.

        Raises
        ------
        ParameterError
            No record has one of the ids, or the rows of the matrix are queries.
        """
        if not self._matrix.reflexive:
            raise ParameterError(
                "the rows of scores are queries, which have no ids; read scores[:, positions(ids)]"
            )
        rows = [self.rows(row, row + 1) for row in self.positions(names).tolist()]
        return np.concatenate([np.empty((0, self.n), np.float32), *rows])

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {text: row for row, text in enumerate(self.ids)}

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``start`` to ``stop`` of the matrix, (stop − start, n).

        Similarities of these records, or scores of these queries, with all records.
        """
        return self.block(slice(start, stop), slice(0, self.n))

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """A rectangle (k, l) of the matrix; slices as in NumPy, without a step.

        Raises
        ------
        IntegrityFailure
            A chunk is missing or damaged.
        """
        height, width = self._matrix.shape
        return self._matrix.block(_contiguous(rows, height), _contiguous(columns, width))

    def topk(
        self, k: int, rows: slice | Sequence[int] | None = None, block: int = _TOPK_SIDE
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k most similar records of each row, most similar first.

        The rows of a Gram matrix are records too: each is compared with the others only.

        Equal similarities are ordered by index, so the answer does not depend on ``block``.

        Parameters
        ----------
        k : 1 to n, or to n − 1 in a Gram matrix
        rows : which records or queries, all by default
        block : rows and columns read at a time, which bounds the memory

        Returns
        -------
        indices : (rows, k) int64
        values : (rows, k) float32
        """
        most, words = (
            (self.n - 1, "the other records") if self._matrix.reflexive else (self.n, "the records")
        )
        if not 1 <= k <= most:
            raise ParameterError(f"k must be 1 to {most}, {words}; found {k}")
        if block < 1:
            raise ParameterError(f"block must be at least 1, found {block}")
        found = [self._topk_of(run, k, block) for run in _runs(rows, self._matrix.shape[0], block)]
        if not found:
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        ranked = np.concatenate(found)
        return _column_of(ranked), _value_of(ranked)

    def to_dask(self) -> dask.array.Array:
        """The matrix as a Dask array, one chunk a stored chunk.

        Its name is the release's id: no content is hashed into the graph.
        """
        import dask.array

        chunks = tuple(
            tuple(min(side, size - start) for start in range(0, size, side))
            for size, side in zip(self._matrix.shape, self._matrix.chunks, strict=True)
        )
        # Dask's function carries no types of its own.
        map_blocks: Callable[..., dask.array.Array] = dask.array.map_blocks
        return map_blocks(
            _read_chunk,
            self.path / RELEASE_STORE,
            tuple(self._opened),
            name=f"scoreshield-{self._matrix.name}-{self.manifest.release_id}",
            chunks=chunks,
            dtype=np.float32,
            meta=np.empty((0, 0), np.float32),
        )

    def to_xarray(self) -> xarray.DataArray:
        """The matrix as a lazy xarray DataArray that carries the manifest.

        Raises
        ------
        ConfigurationError
            xarray is not installed.
        """
        try:
            import xarray
        except ImportError as error:
            raise ConfigurationError(
                "to_xarray needs xarray, which is not installed: pip install 'scoreshield[xarray]'"
            ) from error
        privacy = self.manifest.privacy
        return xarray.DataArray(
            self.to_dask(),
            dims=self._matrix.dimensions,
            name=self._matrix.name,
            attrs={
                "release_id": self.manifest.release_id,
                "private": str(self.manifest.private),
                "not_private_reason": self.manifest.not_private_reason or "",
                "epsilon": privacy.epsilon,
                "delta": privacy.delta,
                "adjacency": privacy.adjacency,
                "manifest": to_json(self.manifest),
            },
        )

    def _array(self, name: str) -> Any:
        if name not in self._opened:
            raise ConfigurationError(
                f"release {self.manifest.release_id} has arrays {sorted(self._opened)}, not "
                f"'{name}'; ask for it under 'arrays' in the configuration of a release"
            )
        return arrays.CheckedArray(self._opened[name].async_array)

    def _topk_of(self, rows: slice, k: int, block: int) -> NDArray[np.int64]:
        """Ranked keys (rows, k) of one run of rows, best first."""
        best = np.empty((rows.stop - rows.start, 0), np.int64)
        for start in range(0, self.n, block):
            columns = slice(start, min(start + block, self.n))
            keys = _ranking_keys(self._matrix.block(rows, columns), columns)
            if self._matrix.reflexive:
                own = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
                keys[own - rows.start, own - columns.start] = np.iinfo(np.int64).min
            best = np.concatenate([best, keys], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, best.shape[1] - k, axis=1)[:, -k:]
        return np.sort(best, axis=1)[:, ::-1]


def _ranking_keys(values: NDArray[np.float32], columns: slice) -> NDArray[np.int64]:
    """One integer an entry that orders by value, then by smaller column, and holds both.

    The bit pattern of a float, read as an integer, orders like the float once negative ones have
    their lower bits flipped. The high half holds it, the low half counts columns downwards.
    """
    # + 0.0 makes -0.0 a plain 0.0, which it equals.
    bits = (values + np.float32(0.0)).view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    backwards = _LARGEST_COLUMN - np.arange(columns.start, columns.stop, dtype=np.int64)
    keys: NDArray[np.int64] = (ordered << 32) | backwards
    return keys


def _column_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    columns: NDArray[np.int64] = _LARGEST_COLUMN - (keys & _LARGEST_COLUMN)
    return columns


def _value_of(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    ordered = (keys >> 32).astype(np.int32)
    return np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered).view(np.float32)


def _contiguous(part: slice, n: int) -> slice:
    start, stop, step = part.indices(n)
    if step != 1:
        raise ParameterError(f"a block is read without a step, found step {step}")
    return slice(start, max(start, stop))


def _runs(rows: slice | Sequence[int] | None, n: int, block: int) -> Iterator[slice]:
    """Runs of consecutive rows, at most ``block`` long, in the order asked for."""
    if rows is None or isinstance(rows, slice):
        whole = _contiguous(rows or slice(None), n)
        for start in range(whole.start, whole.stop, block):
            yield slice(start, min(start + block, whole.stop))
        return
    wanted = [_row_index(row, n) for row in rows]
    start = 0
    for end in range(1, len(wanted) + 1):
        ended = end == len(wanted) or wanted[end] != wanted[end - 1] + 1
        if ended or end - start == block:
            yield slice(wanted[start], wanted[end - 1] + 1)
            start = end


def _row_index(row: int, n: int) -> int:
    index = int(row)
    if not -n <= index < n:
        raise ParameterError(f"row {index} asked for, the release has {n} rows")
    return index % n


def _read_chunk(
    store: Place, names: tuple[str, ...], block_info: dict[Any, Any] | None = None
) -> NDArray[np.float32]:
    """One chunk of :meth:`Release.to_dask`, on whatever worker it runs."""
    if block_info is None:
        raise ValueError("a chunk is read within a Dask array only")
    rows, columns = (slice(*span) for span in block_info[None]["array-location"])
    return open_matrix(store, names).block(rows, columns)
