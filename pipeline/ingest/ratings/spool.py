"""Interactions on disk, sorted by record: a file of ratings may be larger than memory.

They are written as they come, then dealt into buckets of successive records, each small enough to
sort in memory. Everything lies in a private scratch folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INTERACTION = np.dtype([("record", "<i4"), ("feature", "<i4"), ("value", "<f8")])
BUCKET_INTERACTIONS = 2**21
"""Interactions of a bucket: sorting them takes some 200 MiB. One record is never divided."""
_PART = 2**20


@dataclass(frozen=True)
class Bucket:
    """All interactions of records ``start`` to ``stop``, in the order in which they came."""

    path: Path
    start: int
    stop: int

    def read(self) -> NDArray[np.void]:
        """The interactions (k,), structured as INTERACTION."""
        return np.fromfile(self.path, dtype=INTERACTION)


class Spool:
    """Interactions in the order of the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "interactions"
        self._path.touch()
        self._counts = np.zeros(0, dtype=np.int64)
        self.count = 0

    def add(
        self,
        records: NDArray[np.int32],
        features: NDArray[np.int32],
        values: NDArray[np.float64],
    ) -> None:
        """Append interactions under the numbers that ids have so far."""
        part = np.empty(len(records), dtype=INTERACTION)
        part["record"], part["feature"], part["value"] = records, features, values
        with self._path.open("ab") as file:
            part.tofile(file)
        counts = np.bincount(records, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self.count += len(records)

    def buckets(
        self, record_places: NDArray[np.int32], feature_places: NDArray[np.int32]
    ) -> list[Bucket]:
        """Deal the interactions into buckets, under the numbers that ids have at last."""
        per_record = np.zeros(len(record_places), dtype=np.int64)
        per_record[record_places[: len(self._counts)]] = self._counts
        starts = bucket_starts(per_record, BUCKET_INTERACTIONS)
        stops = [*starts[1:].tolist(), len(per_record)]
        buckets = [
            Bucket(self._folder / f"bucket-{number}", start, stop)
            for number, (start, stop) in enumerate(zip(starts.tolist(), stops, strict=True))
        ]
        for bucket in buckets:
            bucket.path.touch()
        for part in self._parts():
            part["record"] = record_places[part["record"]]
            part["feature"] = feature_places[part["feature"]]
            self._deal(part, starts, buckets)
        self._path.unlink()
        return buckets

    def _parts(self) -> Iterator[NDArray[np.void]]:
        with self._path.open("rb") as file:
            while len(part := np.fromfile(file, dtype=INTERACTION, count=_PART)):
                yield part

    @staticmethod
    def _deal(part: NDArray[np.void], starts: NDArray[np.int64], buckets: list[Bucket]) -> None:
        number = np.searchsorted(starts, part["record"], side="right") - 1
        # Stable, so that the last of a repeated pair stays the last.
        part = part[np.argsort(number, kind="stable")]
        ends = np.cumsum(np.bincount(number, minlength=len(buckets)))
        for bucket, end, begin in zip(buckets, ends, [0, *ends[:-1]], strict=True):
            if end > begin:
                with bucket.path.open("ab") as file:
                    part[begin:end].tofile(file)


def bucket_starts(counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """First records of buckets of at most ``limit`` interactions, or of one record that has more.

    Parameters
    ----------
    counts : (n,) interactions of each record.
    """
    ends = np.cumsum(counts)
    starts = [0]
    while True:
        before = int(ends[starts[-1] - 1]) if starts[-1] else 0
        following = int(np.searchsorted(ends, before + limit, side="right"))
        following = max(following, starts[-1] + 1)
        if following >= len(counts):
            return np.array(starts, dtype=np.int64)
        starts.append(following)
