"""Parquet files, read with pyarrow: one column of lists of numbers, one list an embedding.

Fixed-size lists, lists of one length each, and fixed-shape tensors of one dimension are matrices.
The file is read in batches of rows, so neither a row group nor the column is ever in memory whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ingest.layouts import regrouped
from pipeline.ingest.libraries import library
from pipeline.ingest.public_ids import PART_ROWS, Parts, check_ids_array
from pipeline.ingest.rows import FaultyRows
from pipeline.ingest.source import ArrayEntry, Source, check_matrix, choose_key, reading
from scoreshield.errors import InputRejected

_BUFFER_BYTES = 2**20
_BATCH_BYTES = 2**19
_FIRST_ROWS = 1024


def open_parquet(path: Path, key: str | None) -> Source:
    """The chosen column of a Parquet file; without a key, the only column of lists."""
    with reading(str(path)), _opened(path) as file:
        n, schema = file.metadata.num_rows, file.schema_arrow
        lists = [field for field in schema if _unnested(field.type)[0] > 0]
        # A table's other columns describe its records; a column of lists is what holds vectors.
        offered = schema if key is not None or not lists else lists
        chosen = choose_key(path, [_entry(field, n) for field in offered], key)
        name = f"{path}[{chosen}]"
        column = schema.field(chosen).type
        depth, values = _unnested(column)
        dtype = _dtype(values)
    if depth != 1:
        # The lengths don't matter: no number of dimensions but two is accepted.
        check_matrix(name, (n,) * (depth + 1), dtype)
    with reading(name):
        d = _length(path, chosen, column)
    return Source(name, check_matrix(name, (n, d), dtype), dtype, partial(_panels, path, chosen))


def parquet_ids(path: Path, name: str) -> Parts:
    """The ids in a column of text or integers."""
    with reading(str(path)), _opened(path) as file:
        n, schema = file.metadata.num_rows, file.schema_arrow
        choose_key(path, [_entry(field, n) for field in schema], name)
        depth, values = _unnested(schema.field(name).type)
        check_ids_array(f"{path}[{name}]", (n,) * (depth + 1), _dtype(values))
    with reading(f"{path}[{name}]"):
        for cells in _batches(path, name, PART_ROWS):
            yield cells.to_pylist()


def _panels(
    path: Path, key: str, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    # pyarrow takes several times a batch while it decodes one, so batches are kept small.
    batch = max(1, min(rows, _BATCH_BYTES // (8 * matrix.shape[1])))
    yield from regrouped(_checked_batches(path, key, matrix, batch), matrix, rows)


def _checked_batches(path: Path, key: str, matrix: Source, rows: int) -> Iterator[NDArray[Any]]:
    n, d = matrix.shape
    faults = FaultyRows(f"{d} numbers, the length of the first row")
    start = 0
    with reading(matrix.name):
        for cells in _batches(path, key, rows):
            if start + len(cells) > n:
                break
            faults.add("no value (null)", _null_rows(cells), start)
            faults.add("another length", _ragged_rows(cells, d), start)
            start += len(cells)
            # Once a row is refused nothing more is handed out, but all of them are counted.
            if not faults.count:
                yield cells.flatten().to_numpy(zero_copy_only=False).reshape(-1, d)
        faults.refuse(matrix.name, n)
    if start != n:
        raise InputRejected(
            f"{matrix.name}: found other rows than the {n} that the footer says. The file "
            "is damaged; write it again."
        )


def _opened(path: Path) -> Any:
    parquet = library("pyarrow.parquet", "parquet", path)
    # Buffered and not pre-buffered: pages are read one after the other.
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _batches(path: Path, key: str, rows: int) -> Iterator[Any]:
    """Successive arrays of at most ``rows`` cells of a column."""
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=rows, columns=[key], use_threads=False):
            # By name: pyarrow also hands out columns whose name goes on after a dot.
            cells = batch.column(key)
            yield cells.storage if hasattr(cells, "storage") else cells


def _storage(column: Any) -> Any:
    return getattr(column, "storage_type", column)


def _unnested(column: Any) -> tuple[int, Any]:
    """How many lists are around a column's values, and the type of the values."""
    column, depth = _storage(column), 0
    while hasattr(column, "value_type") and column.num_fields == 1:
        column, depth = _storage(column.value_type), depth + 1
    return depth, column


def _dtype(values: Any) -> np.dtype[Any]:
    """A type as NumPy knows it; "objects" for what it does not."""
    if str(values).endswith(("string", "string_view")):
        return np.dtypes.StringDType()
    try:
        found: np.dtype[Any] = np.dtype(values.to_pandas_dtype())
    except NotImplementedError:
        return np.dtype(object)
    return found


def _entry(field: Any, n: int) -> ArrayEntry:
    """A column in a list of what is there: of two dimensions where it holds vectors."""
    depth, length = _unnested(field.type)[0], getattr(_storage(field.type), "list_size", -1)
    shape = (n, length) if depth == 1 else (n,)
    known = shape if shape[-1] >= 0 else None
    return ArrayEntry(field.name, known, str(field.type))


def _length(path: Path, key: str, column: Any) -> int:
    """Length of the column's first list."""
    size = getattr(_storage(column), "list_size", -1)
    if size >= 0:
        return int(size)
    for cells in _batches(path, key, _FIRST_ROWS):
        lengths = _lengths(cells)
        given = np.flatnonzero(~_missing(cells))
        return int(lengths[given[0]]) if given.size else 0
    return 0


def _missing(cells: Any) -> NDArray[np.bool_]:
    return np.asarray(cells.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _lengths(cells: Any) -> NDArray[np.int64]:
    """Lengths of the lists (k,), 0 where there is none."""
    size = getattr(cells.type, "list_size", -1)
    if size >= 0:
        return np.where(_missing(cells), 0, size)
    lengths = cells.value_lengths().fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def _null_rows(cells: Any) -> NDArray[np.bool_]:
    """Which rows (k,) are null or hold a null."""
    rows = _missing(cells)
    values = cells.flatten()
    if values.null_count:
        owner = np.repeat(np.arange(len(cells)), _lengths(cells))
        rows[owner[_missing(values)]] = True
    return rows


def _ragged_rows(cells: Any, d: int) -> NDArray[np.bool_]:
    """Which rows (k,) are lists of another length than d."""
    return np.asarray((_lengths(cells) != d) & ~_missing(cells))
