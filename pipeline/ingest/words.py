"""Text of fastText, word2vec and GloVe: a word and its numbers a line, separated by spaces.

The first line may say how many words there are and how many numbers each has; GloVe leaves it out,
and then the lines are counted first. A word may hold spaces: the numbers are counted from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.store import panels
from pipeline.ingest.public_ids import PART_ROWS, Parts
from pipeline.ingest.rows import FaultyRows
from pipeline.ingest.source import check_matrix, reading
from scoreshield.errors import InputRejected

SUFFIXES = (".vec", ".txt")
_LONGEST_LINE = 2**20
_COUNTED_BYTES = 2**20


@dataclass(frozen=True)
class WordVectors:
    """A matrix in a text of word vectors."""

    path: Path
    name: str
    shape: tuple[int, int]
    header: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def panels(self, rows: int, scratch: Path) -> Iterator[NDArray[Any]]:
        n, d = self.shape
        faults = FaultyRows(f"a word and {d} numbers")
        with reading(self.name), self.path.open("rb") as file:
            lines = _lines(file, self.name)
            if self.header:
                next(lines)
            for start, stop in panels(n, rows):
                panel = _numbers(list(islice(lines, stop - start)), d, faults, start)
                if panel.shape[0] != stop - start:
                    self._refuse_count(start + panel.shape[0])
                # Once a row is refused nothing more is handed out, but all of them are counted.
                if not faults.count:
                    yield panel
            extra = sum(1 for _ in lines)
            if extra:
                self._refuse_count(n + extra)
        faults.refuse(self.name, n)

    def _refuse_count(self, found: int) -> None:
        raise InputRejected(
            f"{self.name}: found {found} words, the first line says {self.shape[0]}. The file was "
            "cut short, or is being written; copy it again."
        )


def open_words(path: Path, key: str | None) -> WordVectors:
    """The matrix of a text of word vectors; its first line says how many numbers a word has."""
    if key is not None:
        raise InputRejected(
            f"{path}: holds no array '{key}'; a text of word vectors holds one array without a "
            "name. Leave the key out."
        )
    name = str(path)
    with reading(name), path.open("rb") as file:
        first = next(_lines(file, name), b"").split()
        header = len(first) == 2 and all(word.isdigit() for word in first)
        if header:
            n, d = int(first[0]), int(first[1])
        else:
            n, d = _count_lines(file), len(first) - 1
    if d < 1:
        raise InputRejected(
            f"{name}: found a first line that is neither 'COUNT LENGTH' nor a word and its "
            "numbers, expected a text of word vectors (fastText .vec, word2vec or GloVe text)."
        )
    return WordVectors(path, name, check_matrix(name, (n, d), np.dtype(np.float64)), header)


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Lines without their ends, none of them longer than any row of numbers."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise InputRejected(
                f"{name}: found a line of more than {_LONGEST_LINE} bytes, expected a word and its "
                "numbers. This is no text of word vectors."
            )
        yield line.rstrip()


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


def word_ids(path: Path, name: str) -> Parts:
    """The words themselves, whose only name is ``words``."""
    if name != "words":
        raise InputRejected(
            f"{path}: holds no ids '{name}'; the ids of a text of word vectors are its 'words'."
        )
    vectors = open_words(path, None)
    with reading(str(path)), path.open("rb") as file:
        lines = _lines(file, str(path))
        if vectors.header:
            next(lines)
        while part := list(islice(lines, PART_ROWS)):
            yield [b"".join(line.rsplit(maxsplit=vectors.shape[1])[:1]) for line in part]
