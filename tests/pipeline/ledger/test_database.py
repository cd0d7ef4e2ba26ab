"""The same on SQLite and PostgreSQL: a life, append-only rows, and what an attacker leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sql

from pipeline.errors import BudgetRefused, RunFailed, exit_code
from pipeline.ledger import Ledger, OverspendRefused, database
from pipeline.ledger.kinds import database_for
from pipeline.ledger.verify import adopt_ledger, verify_ledger
from tests.harness.books import BUDGET, DIGEST, KEY, LINEAGE, Books, request


@pytest.fixture
def ledger(books: Books) -> Ledger:
    """Two releases, one committed and one reserved: rows 1 to 6."""
    opened = books.open()
    for release_id in ("first", "second"):
        opened.reserve(LINEAGE, release_id, request(2.0))
    opened.commit_key(LINEAGE, "first", KEY)
    opened.commit(LINEAGE, "first")
    return opened


INSERT = sql.text(
    "INSERT INTO journal (sequence, lineage, kind, subject, body, recorded_at, hash) "
    "VALUES (99, :lineage, :kind, :subject, '{}', '', '')"
)


class TestALife:
    def test_from_creation_to_the_last_spend(self, url: str, tmp_path: Path) -> None:
        private, lineage = tmp_path / "private", LINEAGE
        with pytest.raises(BudgetRefused, match=r"no ledger at .*ledger init CONFIG"):
            Ledger.open(url, private)
        ledger = Ledger.create(url, private)
        ledger.open_account(lineage, BUDGET, DIGEST)
        ledger.reserve(lineage, "first", request(12.0))
        ledger.commit_key(lineage, "first", KEY)
        ledger.commit(lineage, "first")
        ledger.reserve(lineage, "second", request(12.0))
        ledger.abandon(lineage, "second")
        with pytest.raises(OverspendRefused):
            ledger.reserve(lineage, "third", request(12.0))
        account = Ledger.create(url, private).account(lineage)
        assert [(entry.release_id, entry.state) for entry in account.entries] == [
            ("first", "committed"),
            ("second", "abandoned"),
        ]
        assert account.spent == 2 * request(12.0).spend
        assert account.cumulative_epsilons == (
            pytest.approx(12.0, rel=1e-6),
            account.spent_epsilon,
        )
        assert ledger.lineage_of(DIGEST) == lineage
        assert all(check.ok for check in verify_ledger(url, private))

    def test_a_database_of_something_else_is_refused(self, url: str, tmp_path: Path) -> None:
        if url.startswith("sqlite"):
            (tmp_path / "ledger.db").touch()
        with database_for(url).writing() as connection:
            connection.exec_driver_sql("CREATE TABLE customers (name TEXT)")
        for attempt in (Ledger.open, Ledger.create):
            with pytest.raises(BudgetRefused, match=r"not a ScoreShield ledger.*customers.*init"):
                attempt(url, tmp_path / "private")

    def test_another_format_is_refused(self, books: Books) -> None:
        books.rewrite("UPDATE ledger SET format = 'scoreshield-ledger/9'")
        with pytest.raises(BudgetRefused, match=r"scoreshield-ledger/9.*expected"):
            books.open()

    def test_a_ledger_that_is_held_is_no_refusal(
        self, books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        with books.database.writing():
            with pytest.raises(RunFailed, match=r"held by another process.*again"):
                ledger.reserve(LINEAGE, "third", request(1.0))
            # Whoever only reads waits for nobody.
            assert len(ledger.account(LINEAGE).entries) == 2


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
    def test_rows_are_neither_changed_nor_deleted(self, books: Books, statement: str) -> None:
        before = books.rows()
        with pytest.raises(BudgetRefused, match="append-only"), books.database.writing() as held:
            held.exec_driver_sql(statement)
        assert books.rows() == before

    @pytest.mark.parametrize(
        ("lineage", "kind", "subject"),
        [
            (LINEAGE, "opened", ""),
            (LINEAGE, "reserved", "first"),
            (LINEAGE, "abandoned", "first"),
            (LINEAGE, "refunded", "first"),
            ("fresh", "version", None),
        ],
    )
    def test_the_schema_itself_refuses_a_second_of_anything(
        self, books: Books, ledger: Ledger, lineage: str, kind: str, subject: str | None
    ) -> None:
        """A second event of a kind, a second ending, an unknown kind, a second lineage."""
        (version,) = (row[3] for row in books.rows() if row[2] == "version")
        values = {"lineage": lineage, "kind": kind}
        values["subject"] = version if subject is None else subject
        with (
            pytest.raises(BudgetRefused, match=r"(?i)constraint"),
            books.database.writing() as held,
        ):
            held.execute(INSERT, values)


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
    def test_a_changed_row(self, books: Books, ledger: Ledger, statement: str, named: str) -> None:
        books.rewrite(statement)
        before = books.rows()
        with pytest.raises(BudgetRefused, match=named) as refusal:
            books.open()
        assert exit_code(refusal.value) == 4
        assert books.rows() == before
        checks = {check.name: check for check in verify_ledger(books.url, books.private)}
        assert not checks["chain"].ok
        assert not checks["append-only"].ok

    def test_a_ledger_that_is_open_already_notices_too(self, books: Books, ledger: Ledger) -> None:
        books.rewrite("UPDATE journal SET subject = 'none' WHERE sequence = 3")
        with pytest.raises(BudgetRefused, match=r"row 3 .*was changed"):
            ledger.reserve(LINEAGE, "third", request(0.1))

    @pytest.mark.parametrize("kept", [0, 2, 5])
    def test_a_truncated_journal(self, books: Books, ledger: Ledger, kept: int) -> None:
        books.rewrite(f"DELETE FROM journal WHERE sequence > {kept}")  # noqa: S608
        for attempt in (
            lambda: books.open(),
            lambda: ledger.reserve(LINEAGE, "third", request(0.1)),
            lambda: ledger.account(LINEAGE),
        ):
            with pytest.raises(BudgetRefused, match=r"set back.*row 6 was here .*newest copy"):
                attempt()
        (fault,) = (
            check for check in verify_ledger(books.url, books.private) if check.name == "head"
        )
        assert not fault.ok
        assert "row 6 was here before" in fault.detail

    def test_another_history_of_the_same_ledger(self, books: Books, tmp_path: Path) -> None:
        """Set back, then used from another folder until it is longer than it was before."""
        elsewhere = tmp_path / "elsewhere"
        adopt_ledger(books.url, elsewhere)
        books.open().reserve(LINEAGE, "forgotten", request(1.0))
        books.rewrite("DELETE FROM journal WHERE sequence = 3")
        for release_id in ("first", "second"):
            there = Ledger.open(books.url, elsewhere)
            there.reserve(LINEAGE, release_id, request(1.0))
        with pytest.raises(BudgetRefused, match=r"set back.*row 3 .*is not what was here before"):
            books.open()

    def test_a_replaced_ledger(self, books: Books, ledger: Ledger) -> None:
        """A fresh, empty journal under the same identity."""
        books.rewrite("DELETE FROM journal")
        with pytest.raises(BudgetRefused, match="now the newest is nothing"):
            books.open()

    def test_a_dropped_trigger_is_found(self, books: Books, ledger: Ledger) -> None:
        books.rewrite()
        (fault,) = (check for check in verify_ledger(books.url, books.private) if not check.ok)
        assert fault.name == "append-only"
        assert "journal_refuses_update" in fault.detail
