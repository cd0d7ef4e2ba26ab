"""A ledger in one SQLite file, for one machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sql

from pipeline.errors import BudgetRefused, ConfigurationError, RunFailed
from pipeline.ledger import database, schema
from pipeline.ledger.database import INIT, Database
from pipeline.storage.durable import making
from pipeline.storage.filesystem import network_filesystem

_GUARDS = {
    f"{table}_refuses_{change.lower()}": (
        f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    )
    for table in schema.TABLES
    for change in ("UPDATE", "DELETE")
}


class SqliteDatabase(Database):
    """The file that a `sqlite:///` URL names, readable by its owner only."""

    def __init__(self, url: sql.URL) -> None:
        self.path = _path(url)
        engine = sql.create_engine("sqlite://", creator=self._connect, poolclass=sql.pool.NullPool)
        super().__init__(str(self.path), engine)

    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.exists(self.path)

    def make(self) -> None:
        """Make the file; its folder must be there."""
        if not self.path.parent.is_dir():
            raise ConfigurationError(
                f"ledger {self.path}: its folder {self.path.parent} does not exist; make the "
                "folder first"
            )
        self.check_place()
        if not os.path.lexists(self.path):
            self._make_file()
        self._fill()

    def check_place(self) -> None:
        """Refuse a network file system."""
        kind = network_filesystem(self.path.parent)
        if kind is not None:
            raise BudgetRefused(
                f"ledger {self.path} lies on a network file system ({kind}), where SQLite's locks "
                "are unreliable and two jobs could spend the same budget; put it on a local disk, "
                "or in PostgreSQL"
            )

    def storage_fault(self, connection: sql.Connection) -> str | None:
        """What SQLite's own check of its pages and indexes finds."""
        found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        return None if found == "ok" else found

    def missing_guards(self, connection: sql.Connection) -> Sequence[str]:
        """Triggers that were dropped or rewritten."""
        triggers = connection.exec_driver_sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        )
        found = {row.name: row.sql for row in triggers}
        return [name for name, statement in _GUARDS.items() if found.get(name) != statement]

    def _make_file(self) -> None:
        """Let a complete ledger appear under its name: nobody ever opens half of one."""
        try:
            with contextlib.suppress(FileExistsError), making(self.path) as file:
                SqliteDatabase(sql.URL.create("sqlite", database=str(file)))._fill()
        except OSError as error:
            raise ConfigurationError(
                f"ledger {self.path} cannot be made: {error.strerror}"
            ) from error

    def _guard_statements(self) -> Sequence[str]:
        return list(_GUARDS.values())

    def _begin_writing(self, connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _begin_reading(self, connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def _explained(self, error: sql.exc.DBAPIError) -> BudgetRefused | RunFailed:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return RunFailed(
                f"ledger {self.path} was held by another process for {database.BUSY_SECONDS:g} s; "
                "nothing was spent, run the command again"
            )
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return RunFailed(
                f"ledger {self.path} could not be written ({error.orig}); a spend is recorded "
                "whole or not at all. Make room on its disk and run the same command again"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self.damaged(str(error.orig))
        return BudgetRefused(
            f"ledger {self.path} cannot be used ({error.orig}); check its owner, its permissions "
            f"and the free disk space, or make one elsewhere with {INIT} if this gallery was "
            "never released"
        )

    def _connect(self) -> sqlite3.Connection:
        """Open the file, never making one, with transactions that survive a power cut."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=database.BUSY_SECONDS,
            isolation_level=None,
        )
        # EXTRA is FULL plus a sync of the folder once the rollback journal is gone; with FULL alone
        # a power cut can bring that journal back, and with it the budget that was just spent.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection


def _path(url: sql.URL) -> Path:
    if url.query or url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            f"ledger url: found {url.render_as_string()!r}, expected sqlite:/// and a file; a "
            "ledger in memory would forget what was spent"
        )
    return Path(str(url.database)).resolve()
