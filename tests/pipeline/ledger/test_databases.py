"""The same on SQLite and PostgreSQL: a life, append-only rows, and what an attacker leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from pipeline.errors import BudgetRefused, ConfigurationError, RunFailed, exit_code
from pipeline.ledger import Ledger, OverspendRefused, database, postgresql
from pipeline.ledger.database import database_for
from pipeline.ledger.verify import adopt_ledger, verify_ledger

KEY = "0" * 64


@pytest.fixture
def ledger(books: Any, toolbox: Any) -> Ledger:
    """Two releases, one committed and one reserved: rows 1 to 6."""
    opened: Ledger = books.open()
    for release_id in ("first", "second"):
        opened.reserve(toolbox.lineage, release_id, toolbox.request(2.0))
    opened.commit_key(toolbox.lineage, "first", KEY)
    opened.commit(toolbox.lineage, "first")
    return opened


class TestALife:
    def test_from_creation_to_the_last_spend(self, url: str, tmp_path: Path, toolbox: Any) -> None:
        private, lineage = tmp_path / "private", toolbox.lineage
        with pytest.raises(BudgetRefused, match=r"no ledger at .*ledger init CONFIG"):
            Ledger.open(url, private)
        ledger = Ledger.create(url, private)
        ledger.open_account(lineage, toolbox.budget, toolbox.digest)
        ledger.reserve(lineage, "first", toolbox.request(12.0))
        ledger.commit_key(lineage, "first", KEY)
        ledger.commit(lineage, "first")
        ledger.reserve(lineage, "second", toolbox.request(12.0))
        ledger.abandon(lineage, "second")
        with pytest.raises(OverspendRefused):
            ledger.reserve(lineage, "third", toolbox.request(12.0))
        account = Ledger.create(url, private).account(lineage)
        assert [(entry.release_id, entry.state) for entry in account.entries] == [
            ("first", "committed"),
            ("second", "abandoned"),
        ]
        assert account.spent == 2 * toolbox.request(12.0).spend
        assert account.cumulative_epsilons == (
            pytest.approx(12.0, rel=1e-6),
            account.spent_epsilon,
        )
        assert ledger.lineage_of(toolbox.digest) == lineage
        assert all(check.ok for check in verify_ledger(url, private))

    def test_a_database_of_something_else_is_refused(self, url: str, tmp_path: Path) -> None:
        if url.startswith("sqlite"):
            (tmp_path / "ledger.db").touch()
        with database_for(url).writing() as connection:
            connection.exec_driver_sql("CREATE TABLE customers (name TEXT)")
        for attempt in (Ledger.open, Ledger.create):
            with pytest.raises(BudgetRefused, match=r"not a ScoreShield ledger.*customers.*init"):
                attempt(url, tmp_path / "private")

    def test_a_ledger_that_is_held_is_no_refusal(
        self, books: Any, ledger: Ledger, toolbox: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        with books.database.writing():
            with pytest.raises(RunFailed, match=r"held by another process.*again"):
                ledger.reserve(toolbox.lineage, "third", toolbox.request(1.0))
            # Whoever only reads waits for nobody.
            assert len(ledger.account(toolbox.lineage).entries) == 2


class TestAppendOnly:
    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM journal",
            "UPDATE journal SET body = '{}'",
            "DELETE FROM ledger",
            "UPDATE ledger SET secret = ''",
        ],
    )
    def test_rows_are_neither_changed_nor_deleted(self, books: Any, statement: str) -> None:
        before = books.rows()
        with pytest.raises(BudgetRefused, match="append-only"), books.database.writing() as held:
            held.exec_driver_sql(statement)
        assert books.rows() == before

    @pytest.mark.parametrize("table", ["journal", "ledger"])
    def test_postgresql_truncates_nothing(
        self, postgresql_url: str, tmp_path: Path, toolbox: Any, table: str
    ) -> None:
        books = toolbox.open_books(postgresql_url, tmp_path / "private")
        with pytest.raises(BudgetRefused, match="append-only"), books.database.writing() as held:
            held.exec_driver_sql(f"TRUNCATE {table}")

    @pytest.mark.parametrize(
        ("kind", "subject"),
        [("opened", ""), ("reserved", "first"), ("abandoned", "first"), ("refunded", "first")],
    )
    def test_the_schema_itself_refuses_a_second_of_anything(
        self, books: Any, ledger: Ledger, toolbox: Any, kind: str, subject: str
    ) -> None:
        with (
            pytest.raises(BudgetRefused, match=r"(?i)constraint"),
            books.database.writing() as held,
        ):
            held.execute(INSERT, {"lineage": toolbox.lineage, "kind": kind, "subject": subject})

    def test_the_schema_itself_refuses_a_gallery_in_two_lineages(self, books: Any) -> None:
        (subject,) = (row[3] for row in books.rows() if row[2] == "version")
        with (
            pytest.raises(BudgetRefused, match=r"(?i)constraint"),
            books.database.writing() as held,
        ):
            held.execute(INSERT, {"lineage": "fresh", "kind": "version", "subject": subject})


INSERT = sql.text(
    "INSERT INTO journal (sequence, lineage, kind, subject, body, recorded_at, hash) "
    "VALUES (99, :lineage, :kind, :subject, '{}', '', '')"
)


class TestWhatAnAttackerLeaves:
    """Each is found by the next reservation, before it spends, and by ``ledger verify``."""

    @pytest.mark.parametrize(
        ("statement", "named"),
        [
            ("UPDATE journal SET subject = 'none' WHERE sequence = 3", "row 3 .*was changed"),
            ("UPDATE journal SET lineage = 'other' WHERE sequence = 4", "row 4 .*was changed"),
            ("UPDATE journal SET recorded_at = 'x' WHERE sequence = 1", "row 1 .*was changed"),
            ("UPDATE journal SET kind = 'abandoned' WHERE sequence = 6", "row 6 .*was changed"),
            ("UPDATE journal SET hash = 'x' WHERE sequence = 2", "row 2 .*was changed"),
            ("DELETE FROM journal WHERE sequence = 3", "row 3 is missing"),
            ("UPDATE ledger SET secret = '00'", "row 1 .*was changed"),
        ],
    )
    def test_a_changed_row(
        self, books: Any, ledger: Ledger, toolbox: Any, statement: str, named: str
    ) -> None:
        books.rewrite(statement)
        before = books.rows()
        with pytest.raises(BudgetRefused, match=named) as refusal:
            books.open().reserve(toolbox.lineage, "third", toolbox.request(0.1))
        assert exit_code(refusal.value) == 4
        assert books.rows() == before
        checks = {check.name: check for check in verify_ledger(books.url, books.private)}
        assert not checks["chain"].ok
        assert not checks["append-only"].ok

    def test_a_ledger_that_is_open_already_notices_too(
        self, books: Any, ledger: Ledger, toolbox: Any
    ) -> None:
        books.rewrite("UPDATE journal SET subject = 'none' WHERE sequence = 3")
        with pytest.raises(BudgetRefused, match=r"row 3 .*was changed"):
            ledger.reserve(toolbox.lineage, "third", toolbox.request(0.1))

    @pytest.mark.parametrize("kept", [0, 2, 5])
    def test_a_truncated_journal(self, books: Any, ledger: Ledger, toolbox: Any, kept: int) -> None:
        books.rewrite(f"DELETE FROM journal WHERE sequence > {kept}")  # noqa: S608
        for attempt in (
            lambda: books.open(),
            lambda: ledger.reserve(toolbox.lineage, "third", toolbox.request(0.1)),
            lambda: ledger.account(toolbox.lineage),
        ):
            with pytest.raises(BudgetRefused, match=r"set back.*row 6 was here .*newest copy"):
                attempt()
        (fault,) = (
            check for check in verify_ledger(books.url, books.private) if check.name == "head"
        )
        assert not fault.ok
        assert "row 6 was here before" in fault.detail

    def test_another_history_of_the_same_ledger(
        self, books: Any, toolbox: Any, tmp_path: Path
    ) -> None:
        """Set back, then used from another folder until it is longer than it was before."""
        elsewhere = tmp_path / "elsewhere"
        adopt_ledger(books.url, elsewhere)
        books.open().reserve(toolbox.lineage, "forgotten", toolbox.request(1.0))
        books.rewrite("DELETE FROM journal WHERE sequence = 3")
        for release_id in ("first", "second"):
            there = Ledger.open(books.url, elsewhere)
            there.reserve(toolbox.lineage, release_id, toolbox.request(1.0))
        with pytest.raises(BudgetRefused, match=r"set back.*row 3 .*is not what was here before"):
            books.open()

    def test_a_replaced_ledger(self, books: Any, ledger: Ledger, toolbox: Any) -> None:
        """A fresh, empty journal under the same identity."""
        books.rewrite("DELETE FROM journal")
        with pytest.raises(BudgetRefused, match="now the newest is nothing"):
            books.open()

    def test_a_dropped_trigger_is_found(self, books: Any, ledger: Ledger) -> None:
        books.rewrite()
        (fault,) = (check for check in verify_ledger(books.url, books.private) if not check.ok)
        assert fault.name == "append-only"
        assert "journal_refuses_update" in fault.detail


def test_a_file_restored_from_an_older_copy(sqlite_books: Any, toolbox: Any) -> None:
    file = Path(sqlite_books.database.name)
    sqlite_books.open().reserve(toolbox.lineage, "first", toolbox.request(12.0))
    shutil.copy(file, file.with_suffix(".backup"))
    sqlite_books.open().reserve(toolbox.lineage, "second", toolbox.request(12.0))
    newest = file.read_bytes()
    shutil.copy(file.with_suffix(".backup"), file)
    with pytest.raises(BudgetRefused, match=r"was set back .*row 4 was here before"):
        sqlite_books.open()
    file.write_bytes(newest)
    with pytest.raises(OverspendRefused):
        sqlite_books.open().reserve(toolbox.lineage, "third", toolbox.request(12.0))


class TestServer:
    @pytest.mark.parametrize("form", ["postgresql", "postgresql+psycopg"])
    def test_out_of_reach_is_resumable_and_shows_no_password(self, form: str) -> None:
        pytest.importorskip("psycopg")
        url = f"{form}://curator:very-secret@127.0.0.1:1/ledger?sslmode=disable"
        for attempt in (Ledger.open, Ledger.create):
            with pytest.raises(RunFailed, match=r"curator:\*\*\*@127.0.0.1:1/ledger") as failure:
                attempt(url, Path("private"))
            assert "cannot be reached" in str(failure.value)
            assert "very-secret" not in str(failure.value)

    def test_without_psycopg_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(*_: object, **__: object) -> None:
            raise ModuleNotFoundError("No module named 'psycopg'")

        monkeypatch.setattr(postgresql.sql, "create_engine", missing)
        with pytest.raises(ConfigurationError, match=r"pip install 'scoreshield\[postgresql\]'"):
            database_for("postgresql://curator@host/ledger")

    def test_a_user_who_may_only_read_and_insert(
        self, postgresql_url: str, postgresql_server: str, tmp_path: Path, toolbox: Any
    ) -> None:
        """What the document recommends for jobs: no right to change, delete or make anything."""
        books = toolbox.open_books(postgresql_url, tmp_path / "private")
        with books.database.writing() as owner:
            schema = owner.exec_driver_sql("SELECT current_schema()").scalar()
            owner.exec_driver_sql("DROP ROLE IF EXISTS job")
            owner.exec_driver_sql("CREATE ROLE job LOGIN")
            owner.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO job")
            owner.exec_driver_sql(
                "GRANT SELECT ON ledger, journal TO job; GRANT INSERT ON journal TO job"
            )
        as_job = postgresql_url.replace("curator@", "job@")
        ledger = Ledger.open(as_job, tmp_path / "private")
        ledger.reserve(toolbox.lineage, "first", toolbox.request(1.0))
        assert all(check.ok for check in verify_ledger(as_job, tmp_path / "private"))
        with (
            pytest.raises(BudgetRefused, match=r"permission denied.*SELECT and INSERT"),
            database_for(as_job).writing() as held,
        ):
            held.exec_driver_sql("DELETE FROM journal")
        with books.database.writing() as owner:
            owner.exec_driver_sql("DROP OWNED BY job; DROP ROLE job")

    def test_a_spend_is_on_disk_whatever_the_user_s_default(
        self, postgresql_url: str, toolbox: Any, tmp_path: Path
    ) -> None:
        lax = postgresql_url.replace("options=", "options=-csynchronous_commit%3Doff%20")
        with database_for(lax).reading() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "off"
        with database_for(lax).writing() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
