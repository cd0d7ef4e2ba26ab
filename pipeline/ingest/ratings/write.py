"""From a file of ratings to a sparse gallery: number, sort on disk, normalise, round, write.

Three passes: over the file, over its interactions in buckets of records, and over the finished rows
in order, because the order of columns is known only once all entries are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError
from pipeline.gallery.open import open_gallery
from pipeline.gallery.sparse import (
    FORM,
    ORDER,
    POINTERS,
    EntryWriter,
    write_array,
    write_source_ids,
)
from pipeline.gallery.store import Gallery, Location, create_group, describe, panels
from pipeline.ingest.public_ids import PART_ROWS, write_public_ids
from pipeline.ingest.ratings.faults import refuse_lines
from pipeline.ingest.ratings.numbering import Numbering
from pipeline.ingest.ratings.spool import Bucket, Spool
from pipeline.ingest.ratings.table import (
    RatingsOptions,
    RatingsTable,
    UnreadableBlock,
    blocks,
    names_column,
    open_ratings,
    split_line,
)
from pipeline.ingest.rows import OffendingRows, refuse
from pipeline.ingest.source import reading
from pipeline.ingest.target import CountDone, Unfinished, ZeroRows, checked_target, unfinished
from scoreshield.arithmetic.sparse import to_fixed_sparse
from scoreshield.errors import InputRejected
from scoreshield.manifest.interactions import RecordKind

# The last word is id: movieId, item_id, ID; but not david.
_ENDS_IN_ID = re.compile(r"(?:.*[a-z])?I[Dd]|(?:.*[^A-Za-z])?[Ii][Dd]")
_ROW_ENTRY = np.dtype([("feature", "<i4"), ("integer", "<i4")])


@dataclass(frozen=True)
class RatingsCounts:
    """What a file of ratings will be as a gallery: n, d and the most entries of each record."""

    n: int
    d: int
    entries: NDArray[np.int64]


@dataclass
class _FinishedRows:
    """Fixed-point rows in the order of records, on disk, with what is known of them."""

    path: Path
    n: int
    d: int
    repeats: int = 0
    zero: OffendingRows = field(default_factory=OffendingRows)

    def __post_init__(self) -> None:
        self.lengths = np.zeros(self.n, dtype=np.int64)
        self.records_of_feature = np.zeros(self.d, dtype=np.int64)

    def add(self, bucket: Bucket, features: NDArray[np.int32], integers: NDArray[np.int32]) -> None:
        """Append the rows of a bucket, whose lengths are set already."""
        part = np.empty(len(features), dtype=_ROW_ENTRY)
        part["feature"], part["integer"] = features, integers
        with self.path.open("ab") as file:
            part.tofile(file)
        self.records_of_feature += np.bincount(features, minlength=self.d)
        self.zero.add(self.lengths[bucket.start : bucket.stop] == 0, bucket.start)


def ingest_ratings(
    source: str | os.PathLike[str],
    target: Location,
    options: RatingsOptions,
    *,
    public_ids: str | None = None,
    zero_rows: ZeroRows = "refuse",
    lineage: str | None = None,
    overwrite: bool = False,
    progress: CountDone | None = None,
) -> Gallery:
    """Make the sparse gallery ``target`` of the ratings in ``source``.

    Records and features are in the order of their ids. Interactions of value zero count as none.
    Memory holds the ids and one bucket of interactions; the target appears complete or not at all.

    Parameters
    ----------
    source : a text file, one interaction a line.
    public_ids : whoever names the kind of the records here declares their ids public, and every
        release of the gallery carries them. By default they stay with the curator.
    zero_rows : "refuse" records without interactions, or "substitute" one fixed unit vector.
    lineage : as :func:`pipeline.ingest.ingest`.
    overwrite : replace an existing gallery; anything else at the target is never replaced.
    progress : called with the number of interactions read.

    Raises
    ------
    InputRejected
        Lines that are no ratings, repeated pairs, records without ratings, fewer than two records,
        or the target may not be replaced.
    ConfigurationError
        ``options`` or ``public_ids`` name what is not there.
    ParameterError
        ``zero_rows`` or ``lineage`` is not one of the values above.
    RunFailed
        The target can't be written, or another ingest is writing it.
    """
    destination = checked_target(target, overwrite, zero_rows, lineage)
    if public_ids not in (None, options.by):
        raise ConfigurationError(
            f"public_ids: of ratings by {options.by} the ids of {options.by}s can be public, found "
            f"{public_ids!r}; say {options.by!r}, or leave it out"
        )
    table = open_ratings(Path(source), options.columns)
    with unfinished(table.name, destination, overwrite, lineage) as made:
        _write(table, options, made, zero_rows, public_ids is not None, progress)
    return open_gallery(destination)


def count_ratings(source: Path, options: RatingsOptions) -> RatingsCounts:
    """Count records, features and interactions of a file, without keeping any of them.

    Raises
    ------
    InputRejected
        As :func:`ingest_ratings`, where a line or an id is at fault.
    """
    table = open_ratings(source, options.columns)
    records, features = _numberings(options)
    counts = np.zeros(len(records), dtype=np.int64)
    for numbers, _, _ in _numbered(table, options, records, features, None):
        more = np.bincount(numbers, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    _check_sizes(table, len(records))
    _, places = records.in_order()
    ordered = np.zeros(len(records), dtype=np.int64)
    ordered[places] = counts
    return RatingsCounts(len(records), len(features), ordered)


def _write(
    table: RatingsTable,
    options: RatingsOptions,
    made: Unfinished,
    zero_rows: ZeroRows,
    with_ids: bool,
    progress: CountDone | None,
) -> None:
    scratch = made.scratch / "sorting"
    scratch.mkdir(mode=0o700)
    records, features = _numberings(options)
    spool = Spool(scratch)
    for interactions in _numbered(table, options, records, features, progress):
        spool.add(*interactions)
    _check_sizes(table, len(records))
    record_ids, record_places = records.in_order()
    feature_ids, feature_places = features.in_order()
    del records, features
    buckets = spool.buckets(record_places, feature_places)
    rows = _FinishedRows(scratch / "rows", len(record_ids), len(feature_ids))
    for bucket in buckets:
        _finish_rows(bucket, options, rows)
        bucket.path.unlink()
    _refuse_repeats(table, rows.repeats)
    refuse(
        table.name,
        rows.n,
        OffendingRows(),
        OffendingRows() if zero_rows == "substitute" else rows.zero,
    )
    if not rows.lengths.any():
        raise InputRejected(f"{table.name}: every value is zero, so nothing tells records apart.")
    group = create_group(made.place)
    entries = _write_rows(group, buckets, rows)
    id_width = None
    if with_ids:
        parts = (record_ids[start:stop] for start, stop in panels(rows.n, PART_ROWS))
        name = f"{table.name}[{options.by}]"
        id_width = write_public_ids(made.place, parts, name, rows.n, scratch)
    write_source_ids(group, "record_ids", record_ids)
    write_source_ids(group, "feature_ids", feature_ids)
    shutil.rmtree(scratch)
    describe(
        group,
        lineage=made.lineage,
        n=rows.n,
        d=rows.d,
        source_kind="ratings",
        zero_rows=zero_rows,
        substituted=rows.zero.count,
        id_width=id_width,
        form=FORM,
        entries=entries,
        record_kind=options.by,
    )


def _numbered(
    table: RatingsTable,
    options: RatingsOptions,
    records: Numbering,
    features: Numbering,
    progress: CountDone | None,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]]:
    """Numbers of record and feature, and value, of all interactions in the order of the file."""
    listed = len(records)
    done = 0
    try:
        for block in blocks(table):
            ids = (block.items, block.users) if options.by == "item" else (block.users, block.items)
            yield records.number(ids[0]), features.number(ids[1]), block.values
            done += len(block.values)
            if progress is not None:
                progress(done)
    except UnreadableBlock:
        refuse_lines(table)
    if options.records is not None and len(records) > listed:
        raise InputRejected(
            f"{table.name}: {len(records) - listed} of its {options.by}s are not listed in "
            f"{options.records}, which holds {listed}. List every {options.by} there, or leave the "
            "list out (--records)."
        )


def _numberings(options: RatingsOptions) -> tuple[Numbering, Numbering]:
    """For records, those that are listed among them, and for features."""
    listed = () if options.records is None else _listed_ids(options.records, options.by)
    return Numbering(listed), Numbering()


def _listed_ids(path: Path, by: RecordKind) -> list[str]:
    """Ids in the first column of a file, below its header where it has one.

    The first line is a header where its first field names ids, as in MovieLens' ``movieId``.
    """
    if not path.is_file():
        raise InputRejected(f"{path}: does not exist, expected a list of the ids of all {by}s.")
    with reading(str(path)), path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        text = file.readline()
        separator = next((one for one in ("::", "\t", ",", ";") if one in text), ",")
        first = split_line(text.rstrip("\r\n"), separator)[:1]
        ids = [] if first and _names_ids(first[0].strip(), by) else first
        for line in file:
            ids += split_line(line.rstrip("\r\n"), separator)[:1]
        ids = [one.strip() for one in ids]
        for one in ids:
            one.encode()
    if not ids or "" in ids:
        raise InputRejected(f"{path}: expected an id at the start of each line, found none.")
    return ids


def _names_ids(name: str, by: RecordKind) -> bool:
    """Whether a name is that of a column of ids; an id that looks like one must not come first."""
    return names_column(name, by) or _ENDS_IN_ID.fullmatch(name) is not None


def _check_sizes(table: RatingsTable, n: int) -> None:
    if n < 2:
        raise InputRejected(
            f"{table.name}: found {n} records, expected at least 2 records to compare."
        )


def _finish_rows(bucket: Bucket, options: RatingsOptions, rows: _FinishedRows) -> None:
    """Sort a bucket by record and feature, settle repeated pairs, normalise and round."""
    found = bucket.read()
    key = (found["record"] - bucket.start).astype(np.int64) * rows.d + found["feature"]
    order = np.argsort(key, kind="stable")
    key, values = key[order], found["value"][order]
    del found, order
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    rows.repeats += 0 if options.duplicates != "refuse" else int(len(key) - first.sum())
    if options.duplicates == "sum":
        # In the order of the file, one after the other.
        values = np.bincount(np.cumsum(first) - 1, weights=values)
        key = key[first]
    else:
        last = np.append(first[1:], True)[: len(key)]
        key, values = key[last], values[last]
    key, values = key[values != 0], values[values != 0]
    owner, features = np.divmod(key, rows.d)
    lengths = np.bincount(owner, minlength=bucket.stop - bucket.start)
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    integers = to_fixed_sparse(pointers, values, rows.d)
    kept = integers != 0
    rows.lengths[bucket.start : bucket.stop] = np.bincount(owner[kept], minlength=len(lengths))
    rows.add(bucket, features[kept].astype(np.int32), integers[kept])


def _refuse_repeats(table: RatingsTable, repeats: int) -> None:
    if repeats:
        raise InputRejected(
            f"{table.name}: found {repeats} interactions of a user with an item that has an "
            "earlier one; expected each pair once. Remove them, or let the last value count "
            "(--duplicates last; duplicates: under ratings: in a configuration), or their sum "
            "(--duplicates sum)."
        )


def _write_rows(group: zarr.Group, buckets: list[Bucket], rows: _FinishedRows) -> int:
    """Write the rows with their features as columns, most used first; returns the entries."""
    column_of_feature = np.empty(rows.d, dtype=np.int32)
    by_use = np.argsort(-rows.records_of_feature, kind="stable")
    column_of_feature[by_use] = np.arange(rows.d, dtype=np.int32)
    writer = EntryWriter(group)
    with rows.path.open("rb") as file:
        for bucket in buckets:
            lengths = rows.lengths[bucket.start : bucket.stop]
            part = np.fromfile(file, dtype=_ROW_ENTRY, count=int(lengths.sum()))
            columns = column_of_feature[part["feature"]]
            owner = np.repeat(np.arange(len(lengths)), lengths)
            order = np.argsort(owner * rows.d + columns)
            writer.append(columns[order], part["integer"][order])
    write_array(group, POINTERS, np.concatenate([[0], np.cumsum(rows.lengths)]))
    write_array(group, ORDER, column_of_feature)
    return writer.finish()
