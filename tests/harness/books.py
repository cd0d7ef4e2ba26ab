"""Ledgers as tests open them, and what an attacker can do to their rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pipeline.ledger import Budget, Ledger, SpendRequest
from pipeline.ledger.database import Database
from pipeline.ledger.kinds import database_for
from scoreshield.privacy.calibration import noise_multiplier

BUDGET = Budget(20.0, 1e-5)
LINEAGE = "0123456789abcdef0123456789abcdef"
DIGEST = hashlib.sha256(b"gallery").digest()
KEY = hashlib.sha256(b"key").hexdigest()


def request(
    epsilon: float, delta: float = 1e-5, sensitivity: float = 10.0, adjacency: str = "record"
) -> SpendRequest:
    """A request calibrated the way the mechanism does it."""
    sigma = noise_multiplier(epsilon, delta) * sensitivity * (1 + 2.0**-50)
    return SpendRequest(epsilon, delta, sensitivity, sigma, adjacency)


@dataclass(frozen=True)
class Books:
    """A ledger and the private folder that keeps its head, with what an attacker can do to it."""

    url: str
    private: Path

    @property
    def database(self) -> Database:
        """The database below the ledger."""
        return database_for(self.url)

    @property
    def head_file(self) -> Path:
        """The one head of this private folder."""
        (file,) = self.private.glob("ledger-head-*.json")
        return file

    @property
    def file(self) -> Path:
        """The file of a ledger in SQLite."""
        return Path(self.url.removeprefix("sqlite:///"))

    def create(self) -> Ledger:
        """The ledger, made where there is none."""
        return Ledger.create(self.url, self.private)

    def open(self) -> Ledger:
        """The ledger as a release opens it."""
        return Ledger.open(self.url, self.private)

    def rows(self) -> list[tuple[object, ...]]:
        """The journal as it is stored."""
        with self.database.reading() as connection:
            found = connection.exec_driver_sql("SELECT * FROM journal ORDER BY sequence")
            return [tuple(row) for row in found]

    def rewrite(self, *statements: str) -> None:
        """Change rows as only someone who first removes the triggers can."""
        with self.database.writing() as connection:
            if self.url.startswith("sqlite"):
                named = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                for trigger in connection.exec_driver_sql(named).scalars().all():
                    connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
            else:
                for table in ("ledger", "journal"):
                    connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            for statement in statements:
                connection.exec_driver_sql(statement)


def open_books(url: str, private: Path) -> Books:
    """A new ledger with one account."""
    books = Books(url, private)
    books.create().open_account(LINEAGE, BUDGET, DIGEST)
    return books
