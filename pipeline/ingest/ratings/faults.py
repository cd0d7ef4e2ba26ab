"""Which lines of a file of ratings are at fault: read line by line, once it is refused anyway."""

from __future__ import annotations

import csv
import math
from typing import NoReturn

import numpy as np

from pipeline.ingest.ratings.table import LONGEST_LINE, RatingsTable, split_line
from pipeline.ingest.rows import OffendingRows
from scoreshield.errors import InputRejected


def refuse_lines(table: RatingsTable) -> NoReturn:
    """Raise InputRejected with the number of lines of each fault, and the first of them."""
    faults: dict[str, OffendingRows] = {}
    with table.path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            if number == 1 and table.header:
                continue
            fault = _fault(table, line)
            if fault is not None:
                faults.setdefault(fault, OffendingRows()).add(np.ones(1, dtype=bool), number)
    shown = "; ".join(
        f"{lines.count} with {fault} (lines {lines.shown})" for fault, lines in faults.items()
    )
    if not shown:
        raise InputRejected(
            f"{table.name}: found no ratings that can be read; expected {table.width} columns a "
            "line, user, item and value among them."
        )
    raise InputRejected(
        f"{table.name}: found lines that are no ratings: {shown}; expected {table.width} columns "
        "as in the first line, ids in UTF-8, and finite numbers as values. Repair or remove these "
        "lines."
    )


def _fault(table: RatingsTable, line: bytes) -> str | None:
    """What is wrong with a line, in words; None where nothing is."""
    if len(line) > LONGEST_LINE:
        return f"more than {LONGEST_LINE} bytes"
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    if not text:
        return None
    try:
        fields = split_line(text, table.separator)
    except csv.Error:
        return "broken quotes"
    if len(fields) != table.width:
        return "another number of columns"
    if not (fields[table.user].strip() and fields[table.item].strip()):
        return "no id"
    if table.value is not None and not _is_finite(fields[table.value]):
        return "a value that is no finite number"
    return None


def _is_finite(text: str) -> bool:
    try:
        # Python alone reads 1_000 as a number.
        return "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False
