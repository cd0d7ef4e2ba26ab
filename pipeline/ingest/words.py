"""Text of fastText, word2vec and GloVe: a word and its numbers a line, separated by spaces.

The first line may say how many words there are and how many numbers each has; GloVe leaves it out,
and then the lines are counted first. A word may hold spaces: the numbers are counted from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.public_ids import PART_ROWS, Parts
from pipeline.ingest.rows import FaultyRows
from pipeline.ingest.source import Source, check_matrix, reading, refuse_key
from scoreshield.errors import InputRejected

_LONGEST_LINE = 2**20
_COUNTED_BYTES = 2**20


def open_words(path: Path, key: str | None) -> Source:
    """The matrix of a text of word vectors; its first line says how many numbers a word has."""
    refuse_key(path, key, "a text of word vectors")
    name, dtype = str(path), np.dtype(np.float64)
    n, d, header = _layout(path)
    return Source(name, check_matrix(name, (n, d), dtype), dtype, partial(_panels, path, header))


def word_ids(path: Path, name: str) -> Parts:
    """The words themselves, whose only name is ``words``."""
    if name != "words":
        raise InputRejected(
            f"{path}: holds no ids '{name}'; the ids of a text of word vectors are its 'words'."
        )
    _, d, header = _layout(path)
    with reading(str(path)), path.open("rb") as file:
        lines = _lines(file, str(path), header)
        while part := list(islice(lines, PART_ROWS)):
            yield [b"".join(line.rsplit(maxsplit=d)[:1]) for line in part]


def _panels(
    path: Path, header: bool, matrix: Source, rows: int, scratch: Path
) -> Iterator[NDArray[Any]]:
    n, d = matrix.shape
    faults = FaultyRows(f"a word and {d} numbers")
    with reading(matrix.name), path.open("rb") as file:
        lines = _lines(file, matrix.name, header)
        for start, stop in panels(n, rows):
            panel = _numbers(list(islice(lines, stop - start)), d, faults, start)
            if panel.shape[0] != stop - start:
                _refuse_count(matrix, start + panel.shape[0])
            # Once a row is refused nothing more is handed out, but all of them are counted.
            if not faults.count:
                yield panel
        extra = sum(1 for _ in lines)
        if extra:
            _refuse_count(matrix, n + extra)
    faults.refuse(matrix.name, n)


def _refuse_count(matrix: Source, found: int) -> None:
    raise InputRejected(
        f"{matrix.name}: found {found} words, the first line says {matrix.shape[0]}. The file was "
        "cut short, or is being written; copy it again."
    )


def _layout(path: Path) -> tuple[int, int, bool]:
    """Words, numbers of a word, and whether the first line says so."""
    with reading(str(path)), path.open("rb") as file:
        first = next(_lines(file, str(path)), b"").split()
        header = len(first) == 2 and all(word.isdigit() for word in first)
        if header:
            n, d = int(first[0]), int(first[1])
        else:
            n, d = _count_lines(file), len(first) - 1
    if d < 1:
        raise InputRejected(
            f"{path}: found a first line that is neither 'COUNT LENGTH' nor a word and its "
            "numbers, expected a text of word vectors (fastText .vec, word2vec or GloVe text)."
        )
    return n, d, header


def _lines(file: BinaryIO, name: str, header: bool = False) -> Iterator[bytes]:
    """Lines below a header, without their ends, none of them longer than any row of numbers."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise InputRejected(
                f"{name}: found a line of more than {_LONGEST_LINE} bytes, expected a word and its "
                "numbers. This is no text of word vectors."
            )
        if not header:
            yield line.rstrip()
        header = False


def _count_lines(file: BinaryIO) -> int:
    file.seek(0)
    count, last = 0, b"\n"
    while block := file.read(_COUNTED_BYTES):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _numbers(lines: list[bytes], d: int, faults: FaultyRows, start: int) -> NDArray[np.float64]:
    """The numbers (k, d) of k lines; lines that hold something else are counted, and left zero."""
    panel = np.zeros((len(lines), d))
    ragged, foreign = np.zeros(len(lines), dtype=bool), np.zeros(len(lines), dtype=bool)
    for row, line in enumerate(lines):
        cells = line.rsplit(maxsplit=d)
        if len(cells) != d + 1 or _ends_in_number(cells[0]):
            ragged[row] = True
            continue
        try:
            panel[row] = cells[1:]
        except ValueError:
            foreign[row] = True
    faults.add("another number of cells", ragged, start)
    faults.add("cells that are no numbers", foreign, start)
    return panel


def _ends_in_number(word: bytes) -> bool:
    """Whether a word with spaces ends in a number: then the line holds one number too many."""
    before, space, last = word.rpartition(b" ")
    if not space or not before.strip():
        return False
    try:
        float(last)
    except ValueError:
        return False
    return True
