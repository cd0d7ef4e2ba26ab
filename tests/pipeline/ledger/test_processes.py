"""Real processes on one ledger: they race, stall and die, and nothing is spent twice or lost."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.ledger import OverspendRefused, SpendRequest
from pipeline.ledger.verify import verify_ledger
from tests.harness.books import BUDGET, LINEAGE, Books, request

# Forty imports would take longer than the race: one process imports, then forks.
RACE = """
import os, sys
from pathlib import Path
import mpmath  # The accounting imports it where it is first needed: with the ledger in its hands.
from pipeline.errors import BudgetRefused
from pipeline.ledger import Ledger, SpendRequest

url, private, lineage, racers, one_name = sys.argv[1:6]
wanted = SpendRequest(*map(float, sys.argv[6:10]), "record")
closed, gate = os.pipe()

def race(number):
    os.close(gate)
    ledger = Ledger.open(url, Path(private))
    os.read(closed, 1)
    try:
        ledger.reserve(lineage, one_name or f"racer-{number}", wanted)
    except BudgetRefused:
        os._exit(4)
    os._exit(0)

children = []
for number in range(int(racers)):
    child = os.fork()
    if child == 0:
        race(number)
    children.append(child)
os.close(gate)  # Nobody holds it open any more, so all racers read the end of the pipe at once.
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

RESERVE = """
import sys
from pathlib import Path
from pipeline.ledger import Ledger, SpendRequest
{stall}
ledger = Ledger.open(sys.argv[1], Path(sys.argv[2]))
ledger.reserve(sys.argv[3], sys.argv[4], SpendRequest(*map(float, sys.argv[5:9]), "record"))
print("reserved", flush=True)
sys.stdin.readline()
"""

STALL = """
def stalled(self, *arguments):
    print("stalled", flush=True)
    sys.stdin.readline()
from pipeline.ledger.ledger import _Journal
from pipeline.ledger.head import HeadFile
{place} = stalled
"""


def numbers(wanted: SpendRequest) -> list[str]:
    values = (wanted.epsilon, wanted.delta, wanted.sensitivity, wanted.sigma)
    return [repr(value) for value in values]


def race(books: Books, racers: int, name: str, wanted: SpendRequest) -> list[int]:
    """Exit codes of processes that all reserve at once."""
    arguments = [books.url, str(books.private), LINEAGE, str(racers), name, *numbers(wanted)]
    ran = subprocess.run(
        [sys.executable, "-c", RACE, *arguments], capture_output=True, text=True, check=True
    )
    return [int(code) for code in ran.stdout.split()]


def test_forty_race_for_a_budget_that_fits_seven(books: Books) -> None:
    wanted = request(5.8)
    available = request(BUDGET.epsilon, BUDGET.delta).spend
    assert 7 <= available / wanted.spend < 8
    codes = race(books, 40, "", wanted)
    assert Counter(codes) == {0: 7, 4: 33}
    winners = {f"racer-{number}" for number, code in enumerate(codes) if code == 0}
    entries = books.open().account(LINEAGE).entries
    assert {entry.release_id for entry in entries} == winners
    assert all(check.ok for check in verify_ledger(books.url, books.private))


def test_eight_race_for_one_release(books: Books) -> None:
    wanted = request(20.0)
    assert race(books, 8, "same", wanted) == [0] * 8
    assert books.open().account(LINEAGE).spent == wanted.spend


class TestKilled:
    @pytest.fixture
    def start(self, books: Books) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
        started: list[subprocess.Popen[str]] = []

        def start(program: str, expected: str) -> subprocess.Popen[str]:
            """A process that reserves the whole budget, once it has said how far it is."""
            wanted = numbers(request(20.0))
            arguments = [books.url, str(books.private), LINEAGE, "first", *wanted]
            process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == expected
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    def test_after_reserving(self, books: Books, start: Any) -> None:
        kill(start(RESERVE.replace("{stall}", ""), "reserved"))
        ledger = books.open()
        (entry,) = ledger.account(LINEAGE).entries
        assert entry.state == "reserved"
        assert ledger.reserve(LINEAGE, "first", request(20.0)) == entry
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "second", request(1.0))

    def test_in_the_transaction(self, books: Books, start: Any) -> None:
        """The row is inserted and not committed: nothing was spent, and nobody is held up."""
        stall = STALL.replace("{place}", "_Journal.entry")
        process = start(RESERVE.replace("{stall}", stall), "stalled")
        assert books.open().account(LINEAGE).entries == ()
        kill(process)
        books.open().reserve(LINEAGE, "second", request(20.0))
        assert all(check.ok for check in verify_ledger(books.url, books.private))

    def test_between_the_transaction_and_its_head(self, books: Books, start: Any) -> None:
        """The database is ahead of the head: spent, trusted, and caught up by the next one."""
        behind = books.head_file.read_bytes()
        stall = STALL.replace("{place}", "HeadFile.advance")
        kill(start(RESERVE.replace("{stall}", stall), "stalled"))
        assert books.head_file.read_bytes() == behind
        ledger = books.open()
        (entry,) = ledger.account(LINEAGE).entries
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "second", request(1.0))
        ledger.abandon(LINEAGE, entry.release_id)
        assert books.head_file.read_bytes() != behind
        assert all(check.ok for check in verify_ledger(books.url, books.private))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
