"""A table of ratings in a text file: how it is laid out, and its interactions block by block.

Commas, tabs, semicolons and the double colons of MovieLens separate columns. The first line decides
which, and whether there is a header. pyarrow splits the lines; only the needed columns are made.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError
from pipeline.ingest.libraries import library
from pipeline.ingest.source import reading
from scoreshield.errors import InputRejected
from scoreshield.manifest.interactions import RecordKind

Duplicates = Literal["refuse", "last", "sum"]

BLOCK_BYTES = 16 * 2**20
LONGEST_LINE = 2**16
_SEPARATORS = ("::", "\t", ",", ";")
_NAMES = {
    "user": ("user", "userid", "uid", "customer", "customerid", "reviewerid"),
    "item": (
        *("item", "itemid", "iid", "movie", "movieid", "product", "productid", "book", "bookid"),
        *("track", "trackid", "song", "songid", "artist", "artistid", "business", "businessid"),
    ),
    "value": ("rating", "value", "score", "count", "plays", "weight", "stars", "overall"),
}


@dataclass(frozen=True)
class RatingsOptions:
    """What a file of ratings is made into.

    Attributes
    ----------
    by : whether a record is an item with all its users' values, or a user with all items' values.
    columns : the columns of user, item and value by name or by position from 1; without a value
        every interaction counts 1. None: recognised by their names, or the first three.
    duplicates : a pair that comes more than once is refused, or its last value counts, or their
        sum.
    records : a file that lists the ids of all records in its first column, rated or not.
    """

    by: RecordKind
    columns: tuple[str, ...] | None = None
    duplicates: Duplicates = "refuse"
    records: Path | None = None


@dataclass(frozen=True)
class RatingsTable:
    """A file of ratings whose first line was understood."""

    path: Path
    separator: str
    width: int
    header: bool
    user: int
    item: int
    value: int | None

    @property
    def name(self) -> str:
        """For messages."""
        return str(self.path)


@dataclass(frozen=True)
class Block:
    """Some interactions: ids as Arrow strings, values (k,) as finite numbers."""

    users: Any
    items: Any
    values: NDArray[np.float64]


class UnreadableBlock(Exception):
    """Some line of the file is at fault; :mod:`pipeline.ingest.ratings.faults` says which."""


def open_ratings(path: Path, columns: Sequence[str] | None = None) -> RatingsTable:
    """Find out how a file of ratings is laid out, from its first line.

    Raises
    ------
    InputRejected
        The file can't be read, or its columns can't be told.
    ConfigurationError
        ``columns`` does not name two or three columns.
    """
    if not path.is_file():
        found = "a directory" if path.is_dir() else "nothing"
        raise InputRejected(f"{path}: found {found}, expected a text file of ratings.")
    with reading(str(path)), path.open("rb") as file:
        line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise InputRejected(
            f"{path}: found a first line of more than {LONGEST_LINE} bytes; expected a line a "
            "rating, such as '1,31,2.5'."
        )
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise InputRejected(
            f"{path}: the first line is not UTF-8; expected text such as '1,31,2.5'."
        ) from None
    separator = next((one for one in _SEPARATORS if one in text), ",")
    fields = split_line(text, separator)
    if len(fields) < 2:
        raise InputRejected(
            f"{path}: found {len(fields)} column(s) in the first line; expected user, item and "
            "value, separated by ',', ';', tab or '::'."
        )
    names = [field.strip() for field in fields]
    user, item, value, header = _columns(path, names, columns)
    return RatingsTable(path, separator, len(fields), header, user, item, value)


def split_line(line: str, separator: str) -> list[str]:
    """The fields of one line."""
    if separator == "::":
        line, separator = line.replace("::", "\t"), "\t"
    return next(csv.reader([line], delimiter=separator), [])


def blocks(table: RatingsTable) -> Iterator[Block]:
    """All interactions in the order of the file, some 16 MiB of text at a time.

    Raises
    ------
    UnreadableBlock
        A line has another number of columns, no id, or a value that is no finite number.
    """
    arrow = library("pyarrow", "ratings", table.path)
    arrow_csv = library("pyarrow.csv", "ratings", table.path)
    names = [str(column) for column in range(table.width)]
    wanted = [table.user, table.item, *([] if table.value is None else [table.value])]
    with reading(table.name), table.path.open("rb") as file:
        stream = _DoubleColons(file) if table.separator == "::" else file
        try:
            batches = arrow_csv.open_csv(
                stream,
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=BLOCK_BYTES,
                    column_names=names,
                    skip_rows=int(table.header),
                ),
                arrow_csv.ParseOptions(
                    delimiter="\t" if table.separator == "::" else table.separator
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, arrow.string()),
                    include_columns=[names[column] for column in wanted],
                ),
            )
            for batch in batches:
                yield _block(table, batch)
        except arrow.ArrowInvalid:
            # Its words quote the line, which is private.
            raise UnreadableBlock from None


def _block(table: RatingsTable, batch: Any) -> Block:
    users, items = batch.column(0), batch.column(1)
    if table.value is None:
        return Block(users, items, np.ones(len(users)))
    compute = library("pyarrow.compute", "ratings", table.path)
    text = compute.utf8_trim_whitespace(batch.column(2))
    values = compute.cast(text, "float64").to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all():
        raise UnreadableBlock
    return Block(users, items, values)


class _DoubleColons:
    """A file in which '::' reads as a tab, for a reader that wants one character."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(max(1, size - 1))
        # A pair of colons is not torn apart.
        if data.endswith(b":"):
            data += self._file.read(1)
        return data.replace(b"::", b"\t")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def _columns(
    path: Path, names: list[str], asked: Sequence[str] | None
) -> tuple[int, int, int | None, bool]:
    """Positions of user, item and value, and whether the first line is a header."""
    if asked is None:
        return _recognised(path, names)
    if len(asked) not in (2, 3) or len(set(asked)) != len(asked):
        raise ConfigurationError(
            f"columns: expected user, item and value, or user and item, found {', '.join(asked)}"
        )
    if all(one.isdecimal() for one in asked):
        found = [int(one) - 1 for one in asked]
        if not all(0 <= one < len(names) for one in found):
            raise InputRejected(
                f"{path}: has {len(names)} columns; expected positions from 1 to {len(names)}, "
                f"found {', '.join(asked)}."
            )
        if len(found) == 3:
            return found[0], found[1], found[2], not _is_number(names[found[2]])
        return found[0], found[1], None, {"user", "item"} <= _kinds(names).keys()
    missing = [one for one in asked if one not in names]
    if missing:
        raise InputRejected(
            f"{path}: has no column {', '.join(missing)}. Its first line holds: "
            f"{', '.join(names)}. Without a header, name columns by position (--columns 1,2,3)."
        )
    found = [names.index(one) for one in asked]
    return found[0], found[1], found[2] if len(found) == 3 else None, True


def _recognised(path: Path, names: list[str]) -> tuple[int, int, int | None, bool]:
    kinds = _kinds(names)
    if {"user", "item"} <= kinds.keys() and ("value" in kinds or len(names) == 2):
        return kinds["user"], kinds["item"], kinds.get("value"), True
    if len(names) == 2:
        return 0, 1, None, False
    if _is_number(names[2]):
        return 0, 1, 2, False
    raise InputRejected(
        f"{path}: found columns {', '.join(names)}, and can't tell which are user, item and value. "
        "Say so with --columns (columns: under ratings: in a configuration), by name or by "
        "position from 1, such as --columns userId,movieId,rating."
    )


def names_column(name: str, kind: str) -> bool:
    """Whether a name is known as that of a column of users, items or values (``kind``)."""
    return name.lower().replace("_", "").replace(" ", "").replace("-", "") in _NAMES[kind]


def _kinds(names: list[str]) -> dict[str, int]:
    """Positions of the columns whose names are known, by what they hold; the first of a kind."""
    found: dict[str, int] = {}
    for position, name in enumerate(names):
        for kind in _NAMES:
            if names_column(name, kind):
                found.setdefault(kind, position)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
