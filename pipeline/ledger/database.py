"""Where a ledger is stored: what every kind of database must offer."""

from __future__ import annotations

import abc
import contextlib
import secrets
from collections.abc import Iterator, Sequence

import sqlalchemy as sql

from pipeline.errors import BudgetRefused, RunFailed
from pipeline.ledger import schema
from pipeline.ledger.journal import Row

BUSY_SECONDS = 30.0
"""How long a transaction waits for another one."""
INIT = "`scoreshield ledger init CONFIG`"


class Database(abc.ABC):
    """One database. ``name`` is what people are shown; it never holds a password."""

    def __init__(self, name: str, engine: sql.Engine) -> None:
        self.name = name
        self._engine = engine

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether there is anything, of whatever kind."""

    @abc.abstractmethod
    def make(self) -> None:
        """Make an empty ledger where there is nothing; what is there is left as it is."""

    @abc.abstractmethod
    def check_place(self) -> None:
        """Refuse a place where transactions do not hold; BudgetRefused with the reason."""

    @abc.abstractmethod
    def storage_fault(self, connection: sql.Connection) -> str | None:
        """What the database itself finds broken in its storage."""

    @abc.abstractmethod
    def missing_guards(self, connection: sql.Connection) -> Sequence[str]:
        """Names of the triggers that keep rows as they are and are not there any more."""

    @abc.abstractmethod
    def _explained(self, error: sql.exc.DBAPIError) -> BudgetRefused | RunFailed:
        """An error of the driver in plain words."""

    @abc.abstractmethod
    def _begin_writing(self, connection: sql.Connection) -> None:
        """Start a transaction that no other writer can enter before it ends."""

    @abc.abstractmethod
    def _begin_reading(self, connection: sql.Connection) -> None:
        """Start a transaction that only reads."""

    @abc.abstractmethod
    def _guard_statements(self) -> Sequence[str]:
        """What makes the triggers."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction that no other writer can enter before it ends."""
        with self._explaining(), self._engine.begin() as connection:
            self._begin_writing(connection)
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """A transaction that only reads; :func:`read_rows` in it sees one moment of the ledger."""
        with self._explaining(), self._engine.begin() as connection:
            self._begin_reading(connection)
            yield connection

    def damaged(self, found: str) -> BudgetRefused:
        """The refusal of a ledger that cannot say what was spent."""
        words = " ".join(found.split())
        return BudgetRefused(
            f"ledger {self.name} is damaged ({words}): it cannot say what was spent. Restore the "
            f"newest backup; {INIT} makes a new one only for a gallery that was never released"
        )

    def _fill(self) -> None:
        """Make the tables of an empty ledger; a database that holds anything is left as it is."""
        with self.writing() as connection:
            if table_names(connection):
                return
            schema.metadata.create_all(connection)
            for statement in self._guard_statements():
                connection.exec_driver_sql(statement)
            identity = {"format": schema.FORMAT, "secret": secrets.token_hex(32)}
            connection.execute(sql.insert(schema.identity).values(identity))

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sql.exc.DBAPIError as error:
            raise self._explained(error) from error


def table_names(connection: sql.Connection) -> set[str]:
    """The tables of a database, or of a server's current schema."""
    return set(sql.inspect(connection).get_table_names())


def read_rows(connection: sql.Connection) -> list[Row]:
    """The whole journal, in its order, as one statement and so at one moment."""
    columns = schema.journal.c
    selected = sql.select(
        columns.sequence,
        columns.lineage,
        columns.kind,
        columns.subject,
        columns.body,
        columns.recorded_at,
        columns.hash,
    ).order_by(columns.sequence)
    return [Row(*row) for row in connection.execute(selected)]


def read_secret(database: Database, connection: sql.Connection) -> bytes:
    """The ledger's secret, once it is sure that this is a ledger of this version.

    Raises
    ------
    BudgetRefused
        It is something else, another format, or its identity is unreadable.
    """
    tables = table_names(connection)
    if not set(schema.TABLES) <= tables:
        found = f"the tables {', '.join(sorted(tables))}" if tables else "an empty database"
        raise BudgetRefused(
            f"{database.name} is not a ScoreShield ledger: it holds {found}. Name another database "
            f"under `ledger: url:`, and make it with {INIT}"
        )
    rows = connection.execute(sql.select(schema.identity)).all()
    formats = [row.format for row in rows]
    if formats != [schema.FORMAT]:
        raise BudgetRefused(
            f"{database.name} holds a ledger of format {formats}, expected {schema.FORMAT}; use "
            "the version of ScoreShield that made it, or name another database and make it with "
            f"{INIT}"
        )
    try:
        return bytes.fromhex(rows[0].secret)
    except (TypeError, ValueError) as error:
        raise database.damaged("its secret is unreadable") from error
