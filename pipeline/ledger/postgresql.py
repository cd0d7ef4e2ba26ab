"""A ledger in PostgreSQL, for several machines that share one budget.

The password may stand in the URL, but belongs into PGPASSWORD, PGPASSFILE or ~/.pgpass, which the
client library reads by itself; no message shows it either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sql

from pipeline.errors import BudgetRefused, ConfigurationError, RunFailed
from pipeline.ledger import database, schema
from pipeline.ledger.database import INIT, Database, table_names

_DRIVER = "postgresql+psycopg"
_CONNECT_SECONDS = 10
_SILENT_SECONDS = 60
"""After this long without a word from a client, its transaction ends and lets others in."""
_WRITERS = 0x53636F7265534C64
"""Number of the advisory lock that a writer holds: the bytes of "ScoreSLd"."""
_GUARD_FUNCTION = (
    "CREATE FUNCTION ledger_refuses_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
)
_GUARDS = {
    f"{table}_refuses_{change.lower()}": (
        f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} "
        f"FOR EACH {level} EXECUTE FUNCTION ledger_refuses_change()"
    )
    for table in schema.TABLES
    for change, level in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT"))
}
# SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOCK_NOT_AVAILABLE = "55P03"
_CONNECTION_LOST = ("08", "57", "25P03", "53")


class PostgresqlDatabase(Database):
    """The database, and in it the current schema, that a `postgresql://` URL names."""

    def __init__(self, url: sql.URL) -> None:
        name = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        if url.drivername not in ("postgresql", _DRIVER):
            raise ConfigurationError(
                f"ledger url: found the driver {url.drivername!r}, expected postgresql://"
            )
        if not url.database:
            raise ConfigurationError(
                f"ledger url: found {name} without a database, expected "
                "postgresql://USER@HOST/DATABASE"
            )
        super().__init__(name, _engine(url.set(drivername=_DRIVER)))

    def exists(self) -> bool:
        """Whether the schema holds any table."""
        with self.reading() as connection:
            return bool(table_names(connection))

    def make(self) -> None:
        """Make the tables; the database itself must be there."""
        self._fill()

    def check_place(self) -> None:
        """A server's locks hold wherever its clients are."""

    def storage_fault(self, connection: sql.Connection) -> str | None:
        """PostgreSQL checks pages as it reads them."""
        return None

    def missing_guards(self, connection: sql.Connection) -> Sequence[str]:
        """Triggers that were dropped or disabled."""
        enabled = set(
            connection.exec_driver_sql(
                "SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
                "WHERE c.relnamespace = current_schema()::regnamespace AND t.tgenabled <> 'D'"
            ).scalars()
        )
        return [name for name in _GUARDS if name not in enabled]

    def _guard_statements(self) -> Sequence[str]:
        return [_GUARD_FUNCTION, *_GUARDS.values()]

    def _begin_writing(self, connection: sql.Connection) -> None:
        self._begin_reading(connection)
        # A server may acknowledge commits before they are on disk; a spend must be there.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        # An advisory lock needs no right beyond INSERT, which a lock on the table would.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")

    def _begin_reading(self, connection: sql.Connection) -> None:
        waiting = int(database.BUSY_SECONDS * 1000)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {waiting}")
        connection.exec_driver_sql(
            f"SET LOCAL idle_in_transaction_session_timeout = {_SILENT_SECONDS * 1000}"
        )

    def _explained(self, error: sql.exc.DBAPIError) -> BudgetRefused | RunFailed:
        state = getattr(error.orig, "sqlstate", None)
        words = " ".join(str(error.orig).split())
        if state == _LOCK_NOT_AVAILABLE:
            return RunFailed(
                f"ledger {self.name} was held by another process for {database.BUSY_SECONDS:g} s; "
                "nothing was spent, run the command again"
            )
        if state is None or state.startswith(_CONNECTION_LOST):
            return RunFailed(
                f"ledger {self.name}: the server cannot be reached or does not let this user in "
                f"({words}). Check the URL, the server, and PGPASSWORD or PGPASSFILE; what it "
                "recorded is kept, so run the same command again"
            )
        return BudgetRefused(
            f"ledger {self.name} cannot be used ({words}); check the rights of its user, who needs "
            f"SELECT and INSERT on its tables, and CREATE on the schema for {INIT}"
        )


def _engine(url: sql.URL) -> sql.Engine:
    try:
        return sql.create_engine(
            url,
            poolclass=sql.pool.NullPool,
            # Each statement after the lock must see what the last writer committed.
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            connect_args={
                "connect_timeout": _CONNECT_SECONDS,
                "application_name": "scoreshield",
                "client_encoding": "utf8",
            },
        )
    except ImportError as error:
        raise ConfigurationError(
            "ledger url: a postgresql:// ledger needs the package psycopg; install it with "
            "pip install 'scoreshield[postgresql]'"
        ) from error
