"""``ledger verify`` enters every row again, and adopts a ledger that its folder never saw.

A forger who rewrites chain and head as well is found by what the rows mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BudgetRefused
from pipeline.ledger import Ledger
from pipeline.ledger.head import HeadFile
from pipeline.ledger.journal import Event, Head, Row
from pipeline.ledger.verify import _sums_check, adopt_ledger, verify_ledger
from scoreshield.privacy import accounting
from scoreshield.privacy.calibration import noise_multiplier
from tests.harness.books import BUDGET, DIGEST, LINEAGE, Books, request

OPENED = ("opened", "", {"epsilon": 20.0, "delta": 1e-5})


def reserved(name: str, epsilon: float, factor: int = 1) -> tuple[str, str, dict[str, Any]]:
    sigma = noise_multiplier(epsilon, 1e-5) * (1 + 2.0**-50)
    spend = accounting.spend_of(1.0, sigma) * factor
    body = {"epsilon": epsilon, "delta": 1e-5, "sensitivity": 1.0, "sigma": sigma}
    body |= {"adjacency": "record", "spend": f"{spend.numerator}/{spend.denominator}"}
    return "reserved", name, body


def rows(*contents: tuple[str, str, dict[str, Any]], lineage: str = "l") -> list[Row]:
    return [
        Event(number, lineage, kind, subject, json.dumps(body), "now").chained_to("")
        for number, (kind, subject, body) in enumerate(contents, start=1)
    ]


@pytest.mark.parametrize(
    ("journal", "fault"),
    [
        (rows(OPENED, reserved("a", 12.0), reserved("b", 12.0)), None),
        (rows(OPENED, reserved("a", 12.0), ("key", "a", {}), ("committed", "a", {})), None),
        (rows(OPENED, *[reserved(x, 12.0) for x in "abc"]), "row 4 .*exceed the budget"),
        (rows(OPENED, reserved("a", 12.0, factor=0)), "row 2 .*spends less"),
        (rows(OPENED, reserved("a", 1.0), reserved("a", 1.0)), "row 3 .*release is reserved"),
        (rows(OPENED, OPENED), "row 2 .*makes no sense"),
        (rows(reserved("a", 1.0)), "row 1 .*belongs to no account"),
        (rows(OPENED, ("committed", "a", {})), "row 2 .*is not reserved"),
        (rows(OPENED, ("key", "a", {})), "row 2 .*is not reserved"),
        (
            rows(OPENED, reserved("a", 1.0), ("abandoned", "a", {}), ("committed", "a", {})),
            "row 4 .*release is abandoned",
        ),
        (rows(OPENED, ("reserved", "a", {})), "row 2 .*makes no sense"),
        (rows(("opened", "", {"epsilon": -1.0, "delta": 1e-5})), "row 1 .*makes no sense"),
        (
            rows(OPENED, ("version", "v", {})) + rows(OPENED, ("version", "v", {}), lineage="m"),
            "row 2 .*held under lineage l",
        ),
    ],
)
def test_what_no_transaction_wrote(journal: list[Row], fault: str | None) -> None:
    check = _sums_check(journal)
    assert check.ok is (fault is None)
    assert fault is None or re.search(fault, check.detail)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(epsilons=st.lists(st.floats(0.1, 15.0), max_size=8))
def test_it_agrees_with_the_accounting(epsilons: list[float]) -> None:
    contents = [reserved(str(number), epsilon) for number, epsilon in enumerate(epsilons)]
    total = sum((accounting.spend_of(1.0, body["sigma"]) for _, _, body in contents), start=0)
    assert _sums_check(rows(OPENED, *contents)).ok is accounting.fits(total, 20.0, 1e-5)


def test_the_real_ledger_passes(sqlite_books: Books) -> None:
    ledger = sqlite_books.open()
    steps: list[Callable[[], object]] = [
        lambda: ledger.reserve(LINEAGE, "a", request(2.0)),
        lambda: ledger.abandon(LINEAGE, "a"),
        lambda: ledger.open_account(LINEAGE, BUDGET, b"version 2"),
        lambda: ledger.open_account("other", BUDGET, b"other"),
    ]
    for step in steps:
        step()
        checks = verify_ledger(sqlite_books.url, sqlite_books.private)
        assert all(check.ok for check in checks), checks
    assert checks[-1].detail.startswith("2 accounts")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The private folder of a second machine."""
    return tmp_path / "elsewhere"


def test_it_is_refused_until_it_is_adopted(books: Books, elsewhere: Path) -> None:
    with pytest.raises(BudgetRefused, match=r"never seen it.*verify CONFIG --adopt"):
        Ledger.open(books.url, elsewhere)
    faults = [check for check in verify_ledger(books.url, elsewhere) if not check.ok]
    assert [fault.name for fault in faults] == ["head"]
    assert "--adopt" in faults[0].detail
    assert not elsewhere.exists()
    assert all(check.ok for check in adopt_ledger(books.url, elsewhere))
    Ledger.open(books.url, elsewhere).reserve(LINEAGE, "there", request(1.0))
    # The first machine's head is behind now, which is no fault.
    books.open().reserve(LINEAGE, "here", request(1.0))
    entries = Ledger.open(books.url, elsewhere).account(LINEAGE).entries
    assert [entry.release_id for entry in entries] == ["there", "here"]


def test_an_empty_ledger_needs_no_adoption(url: str, elsewhere: Path) -> None:
    Ledger.create(url, elsewhere.with_name("private"))
    assert all(check.ok for check in verify_ledger(url, elsewhere))
    Ledger.open(url, elsewhere).open_account(LINEAGE, BUDGET, DIGEST)
    with pytest.raises(BudgetRefused, match="never seen it"):
        Ledger.open(url, elsewhere.with_name("private"))


def test_a_lost_head_is_refused(books: Books) -> None:
    books.head_file.unlink()
    with pytest.raises(BudgetRefused, match="never seen it"):
        books.open()


def test_adopting_replaces_no_head(books: Books) -> None:
    """A ledger that was set back stays refused, however often it is adopted."""
    books.open().reserve(LINEAGE, "first", request(1.0))
    before = books.head_file.read_bytes()
    books.rewrite("DELETE FROM journal WHERE sequence > 2")
    for _ in range(2):
        checks = adopt_ledger(books.url, books.private)
        assert {check.name for check in checks if not check.ok} == {"append-only", "head"}
    assert books.head_file.read_bytes() == before
    with pytest.raises(BudgetRefused, match="was set back"):
        books.open()


def test_a_ledger_with_another_fault_is_not_adopted(books: Books, elsewhere: Path) -> None:
    books.rewrite("UPDATE journal SET body = '{}' WHERE sequence = 1")
    checks = adopt_ledger(books.url, elsewhere)
    assert {"chain", "head", "sums"} <= {check.name for check in checks if not check.ok}
    assert not elsewhere.exists()


def test_the_head_that_appears_while_a_transaction_begins(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of this folder writes the first rows between the two steps of this one."""
    ledger, read, missed = books.open(), HeadFile.read, []

    def read_too_early(self: HeadFile) -> object:
        if not missed:
            missed.append(True)
            return None
        return read(self)

    monkeypatch.setattr(HeadFile, "read", read_too_early)
    assert ledger.reserve(LINEAGE, "first", request(1.0)).state == "reserved"
    assert missed


def test_a_crash_right_after_the_first_rows_needs_no_adoption(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        ledger.open_account(LINEAGE, BUDGET, DIGEST)
    monkeypatch.undo()
    again = Ledger.open(url, tmp_path / "private")
    assert again.lineages() == (LINEAGE,)
