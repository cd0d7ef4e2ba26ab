"""Reading a published release: lazily, from the dense matrix or from its factor alone.

:func:`open_release` accepts only a directory with a valid signed manifest. Values are read as they
are asked for; each read checks checksums and that the values are finite, and ``scoreshield verify``
checks everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline import arrays
from pipeline.errors import ConfigurationError
from pipeline.manifest_file import (
    check_attributes,
    check_layout,
    read_manifest,
    refuse_foreign_metadata,
)
from pipeline.publish import STORE
from pipeline.signing import check_signature
from scoreshield.errors import ParameterError
from scoreshield.manifest import Manifest, to_json
from scoreshield.released import gram_block

if TYPE_CHECKING:
    import dask.array
    import xarray

_TOPK_SIDE = 1024
_LARGEST_COLUMN = 2**32 - 1


def open_release(path: str | Path, verify_key: str | None = None) -> Release:
    """Open a Gram release.

    Parameters
    ----------
    path : release directory
    verify_key : hexadecimal Ed25519 public key that must have signed the manifest; None accepts
        any key, which finds damage but does not say who published

    Raises
    ------
    IntegrityFailure
        There is no valid signed manifest, or the store is not the one that it describes.
    ConfigurationError
        ``verify_key`` is not a key, or the release is not of regime ``gram``.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    check_signature(manifest, verify_key)
    check_attributes(folder, manifest)
    check_layout(manifest)
    opened = {name: arrays.open_for_reading(folder / STORE, name) for name in manifest.arrays}
    for name, array in opened.items():
        refuse_foreign_metadata(array, manifest.arrays[name])
    if manifest.regime != "gram":
        raise ConfigurationError(
            f"{folder} is a release of regime {manifest.regime}, which has no Gram matrix; read "
            f"its array from {folder / STORE}"
        )
    return Release(folder, manifest, _Source(opened.get("gram"), opened.get("factor")), opened)


@dataclass(frozen=True)
class _Source:
    """Where similarities come from: the dense matrix where it was published, else the factor."""

    gram: Any
    factor: Any

    @property
    def side(self) -> int:
        """Rows of a stored chunk."""
        return int((self.factor if self.gram is None else self.gram).chunks[0])

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Similarities (k, l); from the factor they equal the published ones up to 2^-24."""
        if self.gram is not None:
            return arrays.read(self.gram, (rows, columns))
        whole = slice(0, self.factor.shape[1])
        block = gram_block(
            arrays.read(self.factor, (rows, whole)), arrays.read(self.factor, (columns, whole))
        )
        shared = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
        block[shared - rows.start, shared - columns.start] = 1.0
        return block


@dataclass(frozen=True)
class Release:
    """A published Gram release, read lazily.

    Attributes
    ----------
    path : release directory
    manifest : what the release says of itself
    """

    path: Path
    manifest: Manifest
    _source: _Source
    _opened: dict[str, Any]

    def __repr__(self) -> str:
        privacy = self.manifest.privacy
        private = "" if self.manifest.private else ", NOT PRIVATE"
        return (
            f"<Release {self.manifest.release_id}: n={self.n}, "
            f"arrays={', '.join(sorted(self._opened))}, epsilon={privacy.epsilon:g}, "
            f"delta={privacy.delta:g}, adjacency={privacy.adjacency}{private}>"
        )

    @property
    def n(self) -> int:
        """Number of records."""
        return self.manifest.shape.n

    @property
    def factor(self) -> Any:
        """The factor (n, r) as a lazy Zarr array; slice it to read."""
        return self._array("factor")

    @property
    def diagonal(self) -> Any:
        """The completion of the diagonal (n,) as a lazy Zarr array: 1 − ‖factorᵢ‖²."""
        return self._array("diagonal")

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``start`` to ``stop`` of the Gram matrix, (stop − start, n)."""
        return self.block(slice(start, stop), slice(0, self.n))

    def block(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """A rectangle (k, l) of the Gram matrix; slices as in NumPy, without a step.

        Raises
        ------
        IntegrityFailure
            A chunk is missing or damaged.
        """
        return self._source.block(_contiguous(rows, self.n), _contiguous(columns, self.n))

    def topk(
        self, k: int, rows: slice | Sequence[int] | None = None, block: int = _TOPK_SIDE
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k most similar other records of each row, most similar first.

        Equal similarities are ordered by index, so the answer does not depend on ``block``.

        Parameters
        ----------
        k : 1 to n − 1
        rows : which rows, all by default
        block : rows and columns read at a time, which bounds the memory

        Returns
        -------
        indices : (rows, k) int64
        values : (rows, k) float32
        """
        if not 1 <= k < self.n:
            raise ParameterError(f"k must be 1 to {self.n - 1}, the other records; found {k}")
        if block < 1:
            raise ParameterError(f"block must be at least 1, found {block}")
        found = [self._topk_of(run, k, block) for run in _runs(rows, self.n, block)]
        if not found:
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        ranked = np.concatenate(found)
        return _column_of(ranked), _value_of(ranked)

    def to_dask(self) -> dask.array.Array:
        """The Gram matrix (n, n) as a Dask array, one chunk a stored chunk.

        Its name is the release's id: no content is hashed into the graph.
        """
        import dask.array

        side = self._source.side
        chunks = tuple(min(side, self.n - start) for start in range(0, self.n, side))
        # Dask's function carries no types of its own.
        map_blocks: Callable[..., dask.array.Array] = dask.array.map_blocks
        return map_blocks(
            _read_chunk,
            str(self.path / STORE),
            "gram" in self._opened,
            name=f"scoreshield-gram-{self.manifest.release_id}",
            chunks=(chunks, chunks),
            dtype=np.float32,
            meta=np.empty((0, 0), np.float32),
        )

    def to_xarray(self) -> xarray.DataArray:
        """The Gram matrix as a lazy xarray DataArray that carries the manifest.

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
            dims=("record", "other_record"),
            name="gram",
            attrs={
                "release_id": self.manifest.release_id,
                "private": str(self.manifest.private),
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
        return self._opened[name]

    def _topk_of(self, rows: slice, k: int, block: int) -> NDArray[np.int64]:
        """Ranked keys (rows, k) of one run of rows, best first."""
        best = np.empty((rows.stop - rows.start, 0), np.int64)
        for start in range(0, self.n, block):
            columns = slice(start, min(start + block, self.n))
            keys = _ranking_keys(self._source.block(rows, columns), columns)
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
    store: str, dense: bool, block_info: dict[Any, Any] | None = None
) -> NDArray[np.float32]:
    """One chunk of :meth:`Release.to_dask`, on whatever worker it runs."""
    if block_info is None:
        raise ValueError("a chunk is read within a Dask array only")
    rows, columns = (slice(*span) for span in block_info[None]["array-location"])
    path = Path(store)
    source = (
        _Source(arrays.open_for_reading(path, "gram"), None)
        if dense
        else _Source(None, arrays.open_for_reading(path, "factor"))
    )
    return source.block(rows, columns)
