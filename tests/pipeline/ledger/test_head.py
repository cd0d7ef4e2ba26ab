"""The head kept outside the database."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pipeline.errors import BudgetRefused, RunFailed
from pipeline.ledger.head import HeadFile
from pipeline.ledger.journal import Head

IDENTITY = "ab" * 32


def head(sequence: int) -> Head:
    return Head(sequence, f"{sequence:064x}")


@pytest.fixture
def file(tmp_path: Path) -> HeadFile:
    return HeadFile(tmp_path / "private", IDENTITY)


def test_what_is_written_is_read_and_is_its_owners_alone(file: HeadFile) -> None:
    assert file.read() is None
    file.advance(head(3))
    assert file.read() == head(3)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700
    assert [found.name for found in file.path.parent.iterdir()] == [file.path.name]


def test_reading_makes_nothing(file: HeadFile) -> None:
    file.read()
    assert not file.path.parent.exists()


def test_it_never_goes_back(file: HeadFile) -> None:
    for sequence in (0, 4, 2, 4, 3):
        file.advance(head(sequence))
    assert file.read() == head(4)


def test_many_writers_leave_the_latest(file: HeadFile) -> None:
    writers = [threading.Thread(target=file.advance, args=(head(number),)) for number in range(20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert file.read() == head(19)


def test_each_ledger_has_its_own(file: HeadFile) -> None:
    other = HeadFile(file.path.parent, "cd" * 32)
    file.advance(head(3))
    assert other.read() is None
    other.advance(head(1))
    assert file.read() == head(3)


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": "cd" * 32},
        {"sequence": -1},
        {"sequence": "3"},
        {"sequence": True},
        {"sequence": None},
        {"hash": "xyz"},
        {"hash": 3},
    ],
)
def test_what_can_be_no_head_is_refused_with_its_remedy(
    file: HeadFile, change: dict[str, object]
) -> None:
    file.advance(head(3))
    content = json.loads(file.path.read_text())
    file.path.write_text(json.dumps({**content, **change}))
    for attempt in (file.read, lambda: file.advance(head(4))):
        with pytest.raises(BudgetRefused, match=r"expected the head .*backup.*verify CONFIG --ado"):
            attempt()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", "\xff"])
def test_a_damaged_file_is_refused(file: HeadFile, text: str) -> None:
    file.advance(head(3))
    file.path.write_text(text, encoding="latin-1")
    with pytest.raises(BudgetRefused, match="expected the head"):
        file.read()


def test_a_folder_that_cannot_be_written_is_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    with pytest.raises(RunFailed, match="what the ledger recorded is kept"):
        HeadFile(tmp_path / "private", IDENTITY).advance(head(1))
