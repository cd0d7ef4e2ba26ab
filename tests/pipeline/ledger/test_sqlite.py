"""What is true of a ledger in one file: who reads it, what is made, and what is damage."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from pipeline.errors import BudgetRefused, ConfigurationError
from pipeline.ledger import OverspendRefused, sqlite
from tests.harness.books import BUDGET, DIGEST, LINEAGE, Books, request


@pytest.fixture
def unmade(sqlite_url: str, tmp_path: Path) -> Books:
    """A ledger that is not there yet."""
    return Books(sqlite_url, tmp_path / "private")


def test_readable_by_its_owner_only(sqlite_books: Books) -> None:
    assert sqlite_books.file.stat().st_mode & 0o777 == 0o600


def test_a_name_that_looks_like_a_query(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'a #1 % é.db'}", tmp_path / "private")
    assert books.create().name == str(books.file)
    assert list(tmp_path.iterdir()) == [books.file]


def test_an_empty_file_is_no_ledger_and_may_become_one(unmade: Books) -> None:
    unmade.file.touch()
    with pytest.raises(BudgetRefused, match="an empty database"):
        unmade.open()
    assert unmade.create().lineages() == ()


def test_a_missing_ledger_is_refused_and_not_made(unmade: Books, tmp_path: Path) -> None:
    with pytest.raises(BudgetRefused, match=r"no ledger at .*`scoreshield ledger init CONFIG`"):
        unmade.open()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}", tmp_path / "private")
    with pytest.raises(BudgetRefused, match="no ledger at"):
        books.open()
    with pytest.raises(ConfigurationError, match=r"folder .*nowhere does not exist"):
        books.create()


@pytest.mark.parametrize(
    ("content", "message"),
    [("epsilon = 20\n" * 100, "file is not a database"), (None, "unable to open database file")],
    ids=["another file", "a folder"],
)
def test_something_else_of_that_name_is_refused(
    unmade: Books, content: str | None, message: str
) -> None:
    if content is None:
        unmade.file.mkdir()
    else:
        unmade.file.write_text(content)
    for attempt in (unmade.open, unmade.create):
        with pytest.raises(BudgetRefused, match=message):
            attempt()


def test_a_ledger_that_vanished_is_not_made_again(sqlite_books: Books) -> None:
    ledger = sqlite_books.open()
    sqlite_books.file.unlink()
    with pytest.raises(BudgetRefused, match="unable to open database file"):
        ledger.reserve(LINEAGE, "first", request(1.0))
    assert not sqlite_books.file.exists()


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_file_is_refused(sqlite_books: Books, damage: str) -> None:
    ledger = sqlite_books.open()
    for number in range(20):
        ledger.reserve(LINEAGE, f"release-{number}", request(0.1))
    content = bytearray(sqlite_books.file.read_bytes())
    middle = len(content) // 2
    if damage == "cut":
        del content[middle:]
    else:
        content[middle:] = b"\xa5" * (len(content) - middle)
    sqlite_books.file.write_bytes(content)
    with pytest.raises(BudgetRefused, match=r"is damaged .*[Rr]estore"):
        sqlite_books.open()


def test_a_file_restored_from_an_older_copy(sqlite_books: Books) -> None:
    file = sqlite_books.file
    sqlite_books.open().reserve(LINEAGE, "first", request(12.0))
    shutil.copy(file, file.with_suffix(".backup"))
    sqlite_books.open().reserve(LINEAGE, "second", request(12.0))
    newest = file.read_bytes()
    shutil.copy(file.with_suffix(".backup"), file)
    with pytest.raises(BudgetRefused, match=r"was set back .*row 4 was here before"):
        sqlite_books.open()
    file.write_bytes(newest)
    with pytest.raises(OverspendRefused):
        sqlite_books.open().reserve(LINEAGE, "third", request(12.0))


def test_the_file_is_no_membership_test(sqlite_books: Books) -> None:
    content = sqlite_books.file.read_bytes()
    assert DIGEST not in content
    assert DIGEST.hex().encode() not in content
    assert hashlib.sha256(DIGEST).hexdigest().encode() not in content


def test_two_ledgers_store_one_gallery_differently(tmp_path: Path) -> None:
    stored = set()
    for name in ("one.db", "two.db"):
        books = Books(f"sqlite:///{tmp_path / name}", tmp_path / "private")
        books.create().open_account(LINEAGE, BUDGET, DIGEST)
        stored |= {row[3] for row in books.rows() if row[2] == "version"}
    assert len(stored) == 2


def test_a_ledger_on_a_network_file_system_is_refused_with_the_reason(
    sqlite_books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "network_filesystem", lambda folder: "nfs4")
    for attempt in (sqlite_books.open, sqlite_books.create):
        with pytest.raises(BudgetRefused, match=r"network file system \(nfs4\).*locks"):
            attempt()
