"""What is true of a ledger on a server: passwords, rights, and what is on its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BudgetRefused, ConfigurationError, RunFailed
from pipeline.ledger import Ledger, postgresql
from pipeline.ledger.kinds import database_for
from pipeline.ledger.verify import verify_ledger
from tests.harness.books import LINEAGE, open_books, request


@pytest.mark.parametrize("table", ["journal", "ledger"])
def test_nothing_is_truncated(postgresql_url: str, tmp_path: Path, table: str) -> None:
    books = open_books(postgresql_url, tmp_path / "private")
    with pytest.raises(BudgetRefused, match="append-only"), books.database.writing() as held:
        held.exec_driver_sql(f"TRUNCATE {table}")


@pytest.mark.parametrize("form", ["postgresql", "postgresql+psycopg"])
def test_out_of_reach_is_resumable_and_shows_no_password(form: str) -> None:
    pytest.importorskip("psycopg")
    url = f"{form}://curator:very-secret@127.0.0.1:1/ledger?sslmode=disable"
    for attempt in (Ledger.open, Ledger.create):
        with pytest.raises(RunFailed, match=r"curator:\*\*\*@127.0.0.1:1/ledger") as failure:
            attempt(url, Path("private"))
        assert "cannot be reached" in str(failure.value)
        assert "very-secret" not in str(failure.value)


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr(postgresql.sql, "create_engine", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'scoreshield\[postgresql\]'"):
        database_for("postgresql://curator@host/ledger")


def test_a_user_who_may_only_read_and_insert(
    postgresql_url: str, postgresql_server: str, tmp_path: Path
) -> None:
    """What the document recommends for jobs: no right to change, delete or make anything."""
    books = open_books(postgresql_url, tmp_path / "private")
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
    ledger.reserve(LINEAGE, "first", request(1.0))
    assert all(check.ok for check in verify_ledger(as_job, tmp_path / "private"))
    with (
        pytest.raises(BudgetRefused, match=r"permission denied.*SELECT and INSERT"),
        database_for(as_job).writing() as held,
    ):
        held.exec_driver_sql("DELETE FROM journal")
    with books.database.writing() as owner:
        owner.exec_driver_sql("DROP OWNED BY job; DROP ROLE job")


def test_a_spend_is_on_disk_whatever_the_user_s_default(
    postgresql_url: str, tmp_path: Path
) -> None:
    lax = postgresql_url.replace("options=", "options=-csynchronous_commit%3Doff%20")
    with database_for(lax).reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "off"
    with database_for(lax).writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
