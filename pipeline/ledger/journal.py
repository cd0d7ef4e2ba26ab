"""The journal's rows, and the chain of hashes that ties each row to all rows before it.

hash_k = SHA-256(JSON array of hash_{k-1} and every field of row k), where hash_0 stands for the
ledger itself: its format and its secret. Whoever changes, removes or inserts a row must therefore
rewrite every later one, and then contradicts the head that is kept outside the database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """What a row says; ``sequence`` counts rows from 1 without a gap."""

    sequence: int
    lineage: str
    kind: str
    subject: str
    """The release id; the keyed fingerprint of a version; empty where an account is opened."""
    body: str
    recorded_at: str

    def __str__(self) -> str:
        subject = f" {self.subject[:64]}" if self.subject else ""
        return (
            f"row {self.sequence} ({self.kind}{subject} of lineage {self.lineage}, recorded at "
            f"{self.recorded_at})"
        )

    def chained_to(self, previous: str) -> Row:
        """This event as the row that follows the row with hash ``previous``."""
        return Row(**vars(self), hash=self.hash_after(previous))

    def hash_after(self, previous: str) -> str:
        """SHA-256 over the hash of the row before and all fields, in hexadecimal."""
        # A JSON array tells fields apart whatever they hold, in ASCII whatever the database's.
        fields = [
            previous,
            self.sequence,
            self.lineage,
            self.kind,
            self.subject,
            self.body,
            self.recorded_at,
        ]
        return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Row(Event):
    """An event in its place in the chain."""

    hash: str


@dataclass(frozen=True)
class Head:
    """The newest row that a reader has seen: its number and hash; number 0 is the empty ledger."""

    sequence: int
    hash: str


def genesis(ledger_format: str, secret: bytes) -> Head:
    """The empty ledger; hash_0 is its identity and does not reveal its 256-bit secret."""
    fields = json.dumps(["scoreshield ledger", ledger_format, secret.hex()])
    return Head(0, hashlib.sha256(fields.encode()).hexdigest())


def head_of(start: Head, rows: Sequence[Row]) -> Head:
    """Where the chain of a whole journal ends."""
    return Head(len(rows), rows[-1].hash) if rows else start


def chain_fault(after: Head, rows: Iterable[Row]) -> str | None:
    """The first row that breaks the chain that goes on at a head, in words; None if it holds."""
    previous = after.hash
    for number, row in enumerate(rows, start=after.sequence + 1):
        if row.sequence != number:
            return f"row {number} is missing; the next one found is {row}"
        if row.hash != row.hash_after(previous):
            return f"{row} or the row before it was changed after it was written"
        previous = row.hash
    return None


def head_fault(head: Head, start: Head, rows: Sequence[Row]) -> str | None:
    """How a chain contradicts a head that was seen before, in words; None if it continues it."""
    if head.sequence > len(rows):
        newest = str(rows[-1]) if rows else "nothing"
        return f"row {head.sequence} was here before, and now the newest is {newest}"
    found = rows[head.sequence - 1].hash if head.sequence else start.hash
    if found != head.hash:
        place = str(rows[head.sequence - 1]) if head.sequence else "its identity"
        return f"{place} is not what was here before"
    return None
