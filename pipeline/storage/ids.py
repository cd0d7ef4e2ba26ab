"""Ids of records: public text, one a record, kept beside the embeddings and beside a release.

Ids are off unless an operator declares them public. They never enter the noise, a key, the name of
a release or the digest by which the ledger knows a gallery: they are labels of rows.

Stored as ``ids`` (n, w) uint8: the UTF-8 bytes of an id, filled up with zero bytes. No id holds a
zero byte, so the filling is unambiguous, and any reader of arrays can read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_ID = 256
"""Bytes of UTF-8."""
_DIGEST_BYTES = 16


def encode(ids: Sequence[str], width: int) -> NDArray[np.uint8]:
    """The stored form (k, width) of k ids of at most ``width`` bytes."""
    fixed = np.array([text.encode() for text in ids], dtype=f"S{width}")
    return fixed.view(np.uint8).reshape(len(ids), width)


def decode(stored: NDArray[np.uint8]) -> list[str]:
    """The ids of stored rows (k, w); bytes that are no UTF-8 become characters that none has."""
    rows, width = stored.shape
    fixed = np.ascontiguousarray(stored).view(f"S{width}").reshape(rows)
    return [value.decode(errors="surrogateescape") for value in fixed.tolist()]


def faults(ids: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """What can be wrong with an id, and which of them (k,) have that fault."""
    return {
        "no text": np.array([not text for text in ids], dtype=bool),
        f"more than {LONGEST_ID} bytes": np.array(
            [len(text.encode(errors="surrogateescape")) > LONGEST_ID for text in ids], dtype=bool
        ),
        # A line break or a terminal code could forge what a reader is shown.
        "control characters, or others without a glyph": np.array(
            [not text.isprintable() for text in ids], dtype=bool
        ),
    }


class Distinct:
    """Finds ids that occur twice, in 16 bytes of memory an id."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, ids: Sequence[str]) -> None:
        """Take the next ids, in the order of their rows."""
        for text in ids:
            content = text.encode(errors="surrogatepass")
            self._digests += hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()

    def repeated(self) -> NDArray[np.bool_]:
        """Which ids (n,) are those of an earlier row."""
        halves = np.frombuffer(bytes(self._digests), dtype="<u8").reshape(-1, 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        ordered = halves[order]
        same = (ordered[1:] == ordered[:-1]).all(axis=1)
        marked = np.zeros(halves.shape[0], dtype=bool)
        # The sort is stable: of equal ids the earliest row comes first.
        marked[order[1:][same]] = True
        return marked
