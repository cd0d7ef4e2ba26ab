"""``ledger verify`` enters every row again, and finds what a whole, consistent forgery would say.

The forger rewrites chain and head as well; only what the rows mean contradicts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ledger.journal import Event, Row
from pipeline.ledger.verify import _sums_check, verify_ledger
from scoreshield.privacy import accounting
from scoreshield.privacy.calibration import noise_multiplier

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


def test_the_real_ledger_passes(sqlite_books: Any, toolbox: Any) -> None:
    ledger = sqlite_books.open()
    steps: list[Callable[[], object]] = [
        lambda: ledger.reserve(toolbox.lineage, "a", toolbox.request(2.0)),
        lambda: ledger.abandon(toolbox.lineage, "a"),
        lambda: ledger.register_version(toolbox.lineage, b"version 2"),
        lambda: ledger.open_account("other", toolbox.budget, b"other"),
    ]
    for step in steps:
        step()
        checks = verify_ledger(sqlite_books.url, sqlite_books.private)
        assert all(check.ok for check in checks), checks
    assert asdict(checks[-1])["detail"].startswith("2 accounts")
