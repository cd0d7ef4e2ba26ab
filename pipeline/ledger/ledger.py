"""The ledger's transactions: everything that reads or records a spend goes through one of them."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from pipeline.errors import BudgetRefused, IntegrityFailure
from pipeline.ledger import schema
from pipeline.ledger.account import (
    Account,
    Budget,
    Entry,
    SpendRequest,
    State,
    admitted,
    replayed,
)
from pipeline.ledger.database import INIT, Database, read_rows, read_secret
from pipeline.ledger.head import HeadFile
from pipeline.ledger.journal import Event, Head, Row, chain_fault, genesis, head_fault, head_of
from pipeline.ledger.kinds import database_for
from scoreshield.errors import ParameterError


class Ledger:
    """A ledger database. Make one with :meth:`create`, use it with :meth:`open`.

    Every method is one transaction. Opening verifies the whole journal; a transaction compares the
    rows that were verified with what is stored now, and verifies those that came since, from other
    processes. Every method that records an event may be repeated: the second call finds the event
    and changes nothing.

    Attributes
    ----------
    name : where it is stored, for people; without a password.
    """

    def __init__(self, database: Database, private: Path) -> None:
        self.name = database.name
        self._database = database
        with database.reading() as connection:
            self._secret = read_secret(database, connection)
            fault = database.storage_fault(connection)
        if fault is not None:
            raise database.damaged(fault)
        self._start = genesis(schema.FORMAT, self._secret)
        self._head = HeadFile(private, self._start.hash)
        self._verified_rows: list[Row] = []

    @classmethod
    def create(cls, url: str, private: Path) -> Ledger:
        """Make the ledger; one already there is kept.

        Parameters
        ----------
        url : ``sqlite:///`` and a file, or ``postgresql://USER@HOST/DATABASE``.
        private : the folder that keeps the ledger's head; see :mod:`pipeline.ledger.head`.

        Raises
        ------
        ConfigurationError
            The URL names no such database, or the folder of its file does not exist.
        BudgetRefused
            The database holds something else, or lies on a network file system.
        """
        database_for(url).make()
        return cls.open(url, private)

    @classmethod
    def open(cls, url: str, private: Path) -> Ledger:
        """Open an existing ledger; parameters as of :meth:`create`.

        Raises
        ------
        BudgetRefused
            It is missing, unreadable, damaged, no ledger, was changed, set back or never seen by
            this private folder, or is on a network file system.
        RunFailed
            The server is out of reach, or another process holds the ledger.
        """
        database = database_for(url)
        if not database.exists():
            raise BudgetRefused(
                f"no ledger at {database.name}: without one nothing can be released. If this "
                f"gallery was never released, make one with {INIT}; otherwise put the ledger back"
            )
        database.check_place()
        ledger = cls(database, private)
        with ledger._reading():
            return ledger

    def open_account(self, lineage: str, budget: Budget, fingerprint: bytes) -> Account:
        """The account of a lineage, opened with ``budget`` if there is none yet.

        Parameters
        ----------
        fingerprint : content digest of the gallery; stored only under the ledger's own secret key.

        Raises
        ------
        BudgetRefused
            The account has another budget, or the same content is held under another lineage.
        """
        with self._writing() as journal:
            account = journal.find(lineage)
            if account is not None and account.budget != budget:
                raise BudgetRefused(
                    f"lineage {lineage} was opened with a budget of {account.budget}, but the "
                    f"configuration says {budget}; a budget is not changed by editing the "
                    "configuration, so set it back"
                )
            if account is None:
                journal.append(lineage, "opened", "", asdict(budget))
            self._join(journal, lineage, fingerprint)
            return journal.account(lineage)

    def lineage_of(self, fingerprint: bytes) -> str | None:
        """The lineage under which this gallery content is held, if any."""
        with self._reading() as journal:
            return journal.holder(self._keyed(fingerprint))

    def lineages(self) -> tuple[str, ...]:
        """All lineages with an account, oldest first."""
        with self._reading() as journal:
            return tuple(row.lineage for row in journal.rows if row.kind == "opened")

    def find_account(self, lineage: str) -> Account | None:
        """The account of a lineage; None where none was opened."""
        with self._reading() as journal:
            return journal.find(lineage)

    def account(self, lineage: str) -> Account:
        """The account of a lineage; BudgetRefused where none was opened."""
        with self._reading() as journal:
            return journal.account(lineage)

    def reserve(self, lineage: str, release_id: str, request: SpendRequest) -> Entry:
        """Spend a release's budget, in one transaction, before its key or noise exists.

        A release that was reserved before with the same request is returned and spends nothing.

        Raises
        ------
        OverspendRefused
            The release does not fit what is left of the budget.
        BudgetRefused
            No such account, the release id was used otherwise, or another adjacency is in force.
        """
        with self._writing() as journal:
            entry = admitted(journal.account(lineage), release_id, request)
            if entry is not None:
                return entry
            spend = request.spend
            body = {**asdict(request), "spend": f"{spend.numerator}/{spend.denominator}"}
            journal.append(lineage, "reserved", release_id, body)
            return journal.entry(lineage, release_id)

    def commit_key(self, lineage: str, release_id: str, commitment: str) -> Entry:
        """Bind a reserved release to its key, once, before any noise is made.

        Parameters
        ----------
        commitment : SHA-256 of the key, 64 hexadecimal digits.

        Raises
        ------
        IntegrityFailure
            The release is bound to another key.
        BudgetRefused
            The release is not reserved.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", commitment):
            raise ParameterError(
                "a key commitment is a SHA-256 in 64 lower-case hexadecimal digits"
            )
        with self._writing() as journal:
            entry = journal.entry(lineage, release_id)
            if entry.key_commitment == commitment:
                return entry
            if entry.key_commitment is not None:
                raise IntegrityFailure(
                    f"release {release_id} is bound to a key with commitment "
                    f"{entry.key_commitment[:12]}..., found a key with {commitment[:12]}...; "
                    "two noises on one gallery average out, so restore the first key or abandon "
                    "the release"
                )
            if entry.state != "reserved":
                raise BudgetRefused(f"release {release_id} is {entry.state}; it takes no key now")
            journal.append(lineage, "key", release_id, {"commitment": commitment})
            return journal.entry(lineage, release_id)

    def commit(self, lineage: str, release_id: str) -> Entry:
        """Record that a reserved release was published."""
        return self._settle(
            lineage, release_id, "committed", "was abandoned and cannot be published any more"
        )

    def abandon(self, lineage: str, release_id: str) -> Entry:
        """Give a reserved release up; its budget stays spent."""
        return self._settle(
            lineage, release_id, "abandoned", "is published and cannot be abandoned any more"
        )

    def _settle(self, lineage: str, release_id: str, ending: State, refusal: str) -> Entry:
        with self._writing() as journal:
            entry = journal.entry(lineage, release_id)
            if entry.state == ending:
                return entry
            if entry.state != "reserved":
                raise BudgetRefused(f"release {release_id} {refusal} (since {entry.settled_at})")
            journal.append(lineage, ending, release_id, {})
            return journal.entry(lineage, release_id)

    def _join(self, journal: _Journal, lineage: str, fingerprint: bytes) -> None:
        keyed = self._keyed(fingerprint)
        holder = journal.holder(keyed)
        if holder is None:
            journal.append(lineage, "version", keyed, {})
        elif holder != lineage:
            raise BudgetRefused(
                f"this gallery is already held under lineage {holder}, found it under lineage "
                f"{lineage} as well; a second lineage would be a second budget for the same "
                f"records, so carry it with `--lineage {holder}`"
            )

    def _keyed(self, fingerprint: bytes) -> str:
        """HMAC, so that the database is no membership test for guessed galleries."""
        return hmac.new(self._secret, fingerprint, hashlib.sha256).hexdigest()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[_Journal]:
        """The journal at one moment, verified."""
        # Read before the transaction sees the database: a head is never ahead of what follows it.
        seen = self._head.read()
        with self._database.reading() as connection:
            yield self._verified(connection, seen)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[_Journal]:
        """The journal, verified, while no other writer can change it; its new head is kept."""
        seen = self._head.read()
        with self._database.writing() as connection:
            journal = self._verified(connection, seen)
            before = journal.head
            if before.sequence == 0:
                # From now on a folder without a head is one that has never seen this ledger.
                self._head.advance(before)
            yield journal
        # Only now: what a transaction appends may still be rolled back.
        self._verified_rows = journal.rows
        if journal.head != before:
            self._head.advance(journal.head)

    def _verified(self, connection: sql.Connection, seen: Head | None) -> _Journal:
        """The journal, if its chain holds and continues what was seen here and in this folder."""
        rows, known = read_rows(connection), self._verified_rows
        own = head_of(self._start, known)
        after = own if rows[: own.sequence] == known else self._start
        broken = chain_fault(after, rows[after.sequence :])
        if broken is not None:
            raise self._database.damaged(broken)
        if seen is None and rows:
            seen = self._head_that_appeared(len(rows))
        for head in (own, seen or self._start):
            set_back = head_fault(head, self._start, rows)
            if set_back is not None:
                raise BudgetRefused(
                    f"ledger {self.name} was set back or replaced: {set_back} (see "
                    f"{self._head.path}). What was spent since is unknown, so nothing is released. "
                    "Put the newest copy of the ledger back; an older one forgets spends"
                )
        self._verified_rows = list(rows)
        return _Journal(connection, self._database, self._start, rows)

    def _head_that_appeared(self, rows: int) -> Head:
        """The head of a folder that had none before the transaction began.

        Another process of this folder may have written the ledger's first rows meanwhile, and more
        of them than this transaction sees; the chain from its beginning is then all there is to
        check.
        """
        head = self._head.read()
        if head is None:
            raise BudgetRefused(
                f"ledger {self.name} holds {rows} rows, but this private folder has never seen it: "
                f"{self._head.path} is not there, so nobody can say whether the ledger was set "
                "back. If another machine uses this ledger, or the file is lost and the ledger is "
                "the newest copy, run 'scoreshield ledger verify CONFIG --adopt'"
            )
        return head if head.sequence <= rows else self._start


class _Journal:
    """The rows of one transaction, already verified."""

    def __init__(
        self, connection: sql.Connection, database: Database, start: Head, rows: list[Row]
    ) -> None:
        self.rows = rows
        self._connection = connection
        self._database = database
        self._start = start

    @property
    def head(self) -> Head:
        """Number and hash of the newest row."""
        return head_of(self._start, self.rows)

    def append(self, lineage: str, kind: str, subject: str, body: dict[str, Any]) -> None:
        """The only statement that writes to the journal."""
        head = self.head
        event = Event(
            sequence=head.sequence + 1,
            lineage=lineage,
            kind=kind,
            subject=subject,
            body=json.dumps(body, sort_keys=True, allow_nan=False),
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        row = event.chained_to(head.hash)
        self._connection.execute(sql.insert(schema.journal).values(asdict(row)))
        self.rows.append(row)

    def find(self, lineage: str) -> Account | None:
        """The account of a lineage, if there is one."""
        try:
            return replayed(lineage, (row for row in self.rows if row.lineage == lineage))
        except (KeyError, TypeError, ValueError) as error:
            raise self._database.damaged(
                f"the journal of lineage {lineage} makes no sense"
            ) from error

    def account(self, lineage: str) -> Account:
        """The account of a lineage; BudgetRefused where there is none."""
        account = self.find(lineage)
        if account is None:
            raise BudgetRefused(
                f"ledger {self._database.name} has no account for lineage {lineage}"
            )
        return account

    def entry(self, lineage: str, release_id: str) -> Entry:
        """A release of a lineage; BudgetRefused where it was never reserved."""
        entry = self.account(lineage).find(release_id)
        if entry is None:
            raise BudgetRefused(
                f"release {release_id} of lineage {lineage} was never reserved in "
                f"{self._database.name}"
            )
        return entry

    def holder(self, keyed: str) -> str | None:
        """The lineage that a keyed fingerprint belongs to."""
        return next(
            (row.lineage for row in self.rows if row.kind == "version" and row.subject == keyed),
            None,
        )
