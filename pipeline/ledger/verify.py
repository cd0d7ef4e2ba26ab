"""The check of a whole ledger: storage, triggers, chain, head, and the sums of every account."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from pipeline.check import Check
from pipeline.errors import BudgetRefused
from pipeline.ledger import schema
from pipeline.ledger.account import Budget, SpendRequest
from pipeline.ledger.database import read_rows, read_secret
from pipeline.ledger.head import HeadFile
from pipeline.ledger.journal import Head, Row, chain_fault, genesis, head_fault, head_of
from pipeline.ledger.kinds import database_for
from scoreshield.errors import ParameterError
from scoreshield.privacy import accounting


def verify_ledger(url: str, private: Path) -> tuple[Check, ...]:
    """Check everything that can be checked, without changing anything.

    Parameters
    ----------
    url, private : as of :meth:`pipeline.ledger.Ledger.create`.

    Raises
    ------
    BudgetRefused
        There is no ledger, or it cannot be read as one.
    """
    database = database_for(url)
    if not database.exists():
        raise BudgetRefused(f"no ledger at {database.name}: there is nothing to verify")
    database.check_place()
    with database.reading() as connection:
        secret = read_secret(database, connection)
        storage = database.storage_fault(connection)
        missing = database.missing_guards(connection)
        rows = read_rows(connection)
    start = genesis(schema.FORMAT, secret)
    broken = chain_fault(start, rows)
    newest = f"{len(rows)} rows, the newest {rows[-1]}" if rows else "no rows yet"
    intact = f"{newest}, hash {head_of(start, rows).hash}"
    return (
        Check("storage", storage is None, storage or database.name),
        Check(
            "append-only",
            not missing,
            f"triggers are gone: {', '.join(missing)}" if missing else "all triggers are in place",
        ),
        Check("chain", broken is None, broken or intact),
        _head_check(HeadFile(private, start.hash), start, rows),
        _sums_check(rows),
    )


def adopt_ledger(url: str, private: Path) -> tuple[Check, ...]:
    """Trust a ledger that this private folder has never seen, if nothing else is wrong with it.

    Nothing but the curator's word then says that the ledger is the newest. A head that is there
    already is never replaced.
    """
    checks = verify_ledger(url, private)
    if [check.name for check in checks if not check.ok] != ["head"]:
        return checks
    database = database_for(url)
    with database.reading() as connection:
        start = genesis(schema.FORMAT, read_secret(database, connection))
        rows = read_rows(connection)
    head = HeadFile(private, start.hash)
    if head.read() is None:
        head.advance(head_of(start, rows))
    return verify_ledger(url, private)


def _head_check(file: HeadFile, start: Head, rows: Sequence[Row]) -> Check:
    seen = file.read()
    if seen is None:
        detail = f"{file.path} is not there"
        if rows:
            detail += ": this folder has never seen the ledger; --adopt trusts it as it is"
        return Check("head", not rows, detail)
    fault = head_fault(seen, start, rows)
    return Check(
        "head", fault is None, fault or f"continues row {seen.sequence}, the last one seen here"
    )


def _sums_check(rows: Sequence[Row]) -> Check:
    fault = next(_sum_faults(rows), None)
    if fault is not None:
        return Check("sums", False, fault)
    accounts = sum(row.kind == "opened" for row in rows)
    return Check("sums", True, f"{accounts} accounts, each within its budget at every row")


def _sum_faults(rows: Sequence[Row]) -> Iterator[str]:
    """What no sequence of the ledger's own transactions can have written, row by row."""
    books: dict[str, _Book] = {}
    holders: dict[str, str] = {}
    for row in rows:
        try:
            if row.kind == "version":
                _hold(holders, row)
            if row.kind == "opened" and row.lineage not in books:
                books[row.lineage] = _Book(Budget(**json.loads(row.body)))
            elif row.lineage in books:
                books[row.lineage].enter(row)
            else:
                yield f"{row} belongs to no account"
        except (KeyError, TypeError, ValueError, ParameterError) as error:
            yield f"{row} makes no sense here: {error}"


def _hold(holders: dict[str, str], row: Row) -> None:
    holder = holders.setdefault(row.subject, row.lineage)
    if holder != row.lineage:
        raise ValueError(f"the same content is held under lineage {holder}")


class _Book:
    """One account while its rows are entered again."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._spent = Fraction(0)
        self._states: dict[str, str] = {}

    def enter(self, row: Row) -> None:
        """Enter a row; ValueError where it contradicts those before it."""
        state = self._states.get(row.subject)
        if row.kind == "version":
            return
        if row.kind == "reserved" and state is None:
            self._reserve(row)
        elif row.kind == "key" and state == "reserved":
            return
        elif row.kind in ("committed", "abandoned") and state == "reserved":
            self._states[row.subject] = row.kind
        else:
            raise ValueError(f"the release is {state or 'not reserved'}")

    def _reserve(self, row: Row) -> None:
        body = json.loads(row.body)
        spend = Fraction(body.pop("spend"))
        if spend < SpendRequest(**body).spend:
            raise ValueError("it spends less than its sensitivity and sigma say")
        self._spent += spend
        if not accounting.fits(self._spent, self._budget.epsilon, self._budget.delta):
            raise ValueError(f"the spends exceed the budget of {self._budget}")
        self._states[row.subject] = "reserved"
