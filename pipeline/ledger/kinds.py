"""The kinds of databases that can hold a ledger, by the beginning of their URLs."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sql

from pipeline.errors import ConfigurationError
from pipeline.ledger.database import Database
from pipeline.ledger.postgresql import PostgresqlDatabase
from pipeline.ledger.sqlite import SqliteDatabase

KINDS: dict[str, Callable[[sql.URL], Database]] = {
    "sqlite": SqliteDatabase,
    "postgresql": PostgresqlDatabase,
}


def database_for(url: str) -> Database:
    """The database that a URL names; nothing is opened yet.

    Raises
    ------
    ConfigurationError
        The URL is of another kind, or names no database that outlives the process.
    """
    try:
        parsed = sql.make_url(url)
    except (sql.exc.ArgumentError, ValueError):
        # The URL is not shown: it may hold a password.
        raise _unknown("no database URL") from None
    kind = parsed.get_backend_name()
    if kind not in KINDS:
        raise _unknown(f"a {kind} database")
    return KINDS[kind](parsed)


def _unknown(found: str) -> ConfigurationError:
    return ConfigurationError(
        f"ledger url: found {found}, expected sqlite:/// and a file, or "
        "postgresql://USER@HOST/DATABASE"
    )
