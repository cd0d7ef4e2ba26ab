"""A private folder and a ledger that it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BudgetRefused
from pipeline.ledger import Ledger
from pipeline.ledger.head import HeadFile
from pipeline.ledger.journal import Head
from pipeline.ledger.verify import adopt_ledger, verify_ledger


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The private folder of a second machine."""
    return tmp_path / "elsewhere"


def test_it_is_refused_until_it_is_adopted(books: Any, elsewhere: Path, toolbox: Any) -> None:
    with pytest.raises(BudgetRefused, match=r"never seen it.*verify CONFIG --adopt"):
        Ledger.open(books.url, elsewhere)
    faults = [check for check in verify_ledger(books.url, elsewhere) if not check.ok]
    assert [fault.name for fault in faults] == ["head"]
    assert "--adopt" in faults[0].detail
    assert not elsewhere.exists()
    assert all(check.ok for check in adopt_ledger(books.url, elsewhere))
    Ledger.open(books.url, elsewhere).reserve(toolbox.lineage, "there", toolbox.request(1.0))
    # The first machine's head is behind now, which is no fault.
    books.open().reserve(toolbox.lineage, "here", toolbox.request(1.0))
    entries = Ledger.open(books.url, elsewhere).account(toolbox.lineage).entries
    assert [entry.release_id for entry in entries] == ["there", "here"]


def test_an_empty_ledger_needs_no_adoption(url: str, elsewhere: Path, toolbox: Any) -> None:
    Ledger.create(url, elsewhere.with_name("private"))
    assert all(check.ok for check in verify_ledger(url, elsewhere))
    Ledger.open(url, elsewhere).open_account(toolbox.lineage, toolbox.budget, toolbox.digest)
    with pytest.raises(BudgetRefused, match="never seen it"):
        Ledger.open(url, elsewhere.with_name("private"))


def test_a_lost_head_is_refused(books: Any) -> None:
    books.head_file.unlink()
    with pytest.raises(BudgetRefused, match="never seen it"):
        books.open()


def test_adopting_replaces_no_head(books: Any, toolbox: Any) -> None:
    """A ledger that was set back stays refused, however often it is adopted."""
    books.open().reserve(toolbox.lineage, "first", toolbox.request(1.0))
    before = books.head_file.read_bytes()
    books.rewrite("DELETE FROM journal WHERE sequence > 2")
    for _ in range(2):
        checks = adopt_ledger(books.url, books.private)
        assert {check.name for check in checks if not check.ok} == {"append-only", "head"}
    assert books.head_file.read_bytes() == before
    with pytest.raises(BudgetRefused, match="was set back"):
        books.open()


def test_a_ledger_with_another_fault_is_not_adopted(books: Any, elsewhere: Path) -> None:
    books.rewrite("UPDATE journal SET body = '{}' WHERE sequence = 1")
    checks = adopt_ledger(books.url, elsewhere)
    assert {"chain", "head", "sums"} <= {check.name for check in checks if not check.ok}
    assert not elsewhere.exists()


def test_the_head_that_appears_while_a_transaction_begins(
    books: Any, toolbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of this folder writes the first rows between the two steps of this one."""
    ledger, read, missed = books.open(), HeadFile.read, []

    def read_too_early(self: HeadFile) -> object:
        if not missed:
            missed.append(True)
            return None
        return read(self)

    monkeypatch.setattr(HeadFile, "read", read_too_early)
    assert ledger.reserve(toolbox.lineage, "first", toolbox.request(1.0)).state == "reserved"
    assert missed


def test_a_crash_right_after_the_first_rows_needs_no_adoption(
    url: str, tmp_path: Path, toolbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transaction is committed, and their head never written."""
    advance = HeadFile.advance

    def crash(self: HeadFile, head: Head) -> None:
        if head.sequence > 0:
            raise KeyboardInterrupt
        advance(self, head)

    ledger = Ledger.create(url, tmp_path / "private")
    monkeypatch.setattr(HeadFile, "advance", crash)
    with pytest.raises(KeyboardInterrupt):
        ledger.open_account(toolbox.lineage, toolbox.budget, toolbox.digest)
    monkeypatch.undo()
    again = Ledger.open(url, tmp_path / "private")
    assert again.lineages() == (toolbox.lineage,)
