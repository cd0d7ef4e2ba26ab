"""The durable record of the privacy budget spent on each gallery lineage.

One append-only journal in a database says everything: an account is opened with a budget, versions
of the gallery join it, releases are reserved before their first noise bit and then committed or
abandoned. State is never stored, only replayed, and no row is ever changed or deleted. Whatever was
once reserved stays spent, because nothing proves that its noise was never seen.

SQLite for now. All of it is SQLAlchemy Core, except how the file is opened, how a transaction
starts, and the triggers that keep rows as they are: another database needs its own form of those.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sql

from pipeline.durable import sync_folder
from pipeline.errors import BudgetRefused, ConfigurationError, IntegrityFailure, RunFailed
from pipeline.filesystem import network_filesystem
from scoreshield import accounting
from scoreshield.calibration import check_privacy, noise_multiplier
from scoreshield.errors import ParameterError

State = Literal["reserved", "committed", "abandoned"]

_FORMAT = "scoreshield-ledger/1"
_BUSY_SECONDS = 30.0
_INIT = "`scoreshield ledger init CONFIG`"
_DIGITS = 6
_ENDINGS = sql.text("kind IN ('committed', 'abandoned')")
_VERSIONS = sql.text("kind = 'version'")

_schema = sql.MetaData()
_identity = sql.Table(
    "ledger",
    _schema,
    sql.Column("format", sql.String(32), primary_key=True),
    sql.Column("secret", sql.String(64), nullable=False),
)
_journal = sql.Table(
    "journal",
    _schema,
    sql.Column("sequence", sql.Integer, primary_key=True),
    sql.Column("lineage", sql.String, nullable=False),
    sql.Column("kind", sql.String(16), nullable=False),
    # The release id; the keyed fingerprint of a version; empty where an account is opened.
    sql.Column("subject", sql.String, nullable=False),
    sql.Column("body", sql.Text, nullable=False),
    sql.Column("recorded_at", sql.String(32), nullable=False),
    sql.UniqueConstraint("lineage", "kind", "subject", name="one_event_of_a_kind"),
    sql.CheckConstraint(
        "kind IN ('opened', 'version', 'reserved', 'key', 'committed', 'abandoned')",
        name="known_kind",
    ),
    sql.Index(
        "one_lineage_a_content",
        "subject",
        unique=True,
        sqlite_where=_VERSIONS,
        postgresql_where=_VERSIONS,
    ),
    sql.Index(
        "one_ending_a_release",
        "lineage",
        "subject",
        unique=True,
        sqlite_where=_ENDINGS,
        postgresql_where=_ENDINGS,
    ),
)
_SQLITE_TRIGGERS = tuple(
    f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for table in (_identity.name, _journal.name)
    for change in ("UPDATE", "DELETE")
)


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that all releases of one lineage together may reach."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_privacy(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon!r} at delta {self.delta!r}"


@dataclass(frozen=True)
class Request:
    """What one release claims (ε, δ) and what it spends (Δ and the σ that is really used)."""

    epsilon: float
    delta: float
    sensitivity: float
    sigma: float
    adjacency: str

    def __post_init__(self) -> None:
        check_privacy(self.epsilon, self.delta)
        for name, value in (("sensitivity", self.sensitivity), ("sigma", self.sigma)):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} must be a positive finite number, found {value!r}")

    @property
    def spend(self) -> Fraction:
        """μ² = (Δ/σ)², rounded up."""
        return accounting.spend_of(self.sensitivity, self.sigma)

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon!r} at delta {self.delta!r}, sensitivity {self.sensitivity!r}, "
            f"sigma {self.sigma!r}, adjacency {self.adjacency}"
        )


@dataclass(frozen=True)
class Entry:
    """One release in the ledger. ``spend`` counts in every state."""

    release_id: str
    request: Request
    spend: Fraction
    state: State
    key_commitment: str | None
    """SHA-256 of the release key in hexadecimal; None until the key is made."""
    reserved_at: str
    settled_at: str | None
    """When the release was committed or abandoned; UTC, ISO 8601, as ``reserved_at``."""


@dataclass(frozen=True)
class Forecast:
    """What a request would do to a budget."""

    budget: Budget
    request: Request
    fits: bool
    spent_epsilon: float
    """ε of all releases so far, at the budget's δ."""
    remaining_epsilon: float
    """The budget's ε less ``spent_epsilon``: room on the books, not the size of a release."""
    largest_epsilon: float
    """The largest ε at the request's δ that still fits, to six digits; zero if none does."""
    after_epsilon: float | None
    """ε at the budget's δ with the request included; None where it is beyond 1e6."""

    def numbers(self) -> dict[str, float]:
        """The four numbers of a refusal."""
        return {
            "spent": self.spent_epsilon,
            "requested": self.request.epsilon,
            "remaining": self.remaining_epsilon,
            "largest": self.largest_epsilon,
        }


@dataclass(frozen=True)
class Account:
    """One gallery lineage: its budget and its releases, oldest first."""

    lineage: str
    budget: Budget
    opened_at: str
    entries: tuple[Entry, ...] = field(default=())

    @property
    def spent(self) -> Fraction:
        """Σμ² over all releases, abandoned ones too."""
        return sum((entry.spend for entry in self.entries), Fraction(0))

    @property
    def spent_epsilon(self) -> float:
        """ε of all releases at the budget's δ, rounded up."""
        return accounting.total_epsilon(self.spent, self.budget.delta)

    @property
    def remaining_epsilon(self) -> float:
        """The budget's ε less what is spent."""
        return max(0.0, self.budget.epsilon - self.spent_epsilon)

    @property
    def largest_epsilon(self) -> float:
        """The largest ε at the budget's δ that one more release can have."""
        return _largest(self.budget, self.spent, self.budget.delta)

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all releases; None before the first."""
        return self.entries[0].request.adjacency if self.entries else None

    def find(self, release_id: str) -> Entry | None:
        """The release of that id, or None."""
        return next((entry for entry in self.entries if entry.release_id == release_id), None)


class OverspendRefused(BudgetRefused):
    """A release that does not fit its budget; ``forecast`` holds the numbers."""

    def __init__(self, lineage: str, forecast: Forecast) -> None:
        budget, request = forecast.budget, forecast.request
        super().__init__(
            f"lineage {lineage} has spent epsilon {forecast.spent_epsilon:.6g} of its budget of "
            f"{budget.epsilon!r} at delta {budget.delta!r}, this release requested epsilon "
            f"{request.epsilon!r} at delta {request.delta!r}, {forecast.remaining_epsilon:.6g} "
            f"remains, and the largest epsilon that still fits at delta {request.delta!r} is "
            f"{forecast.largest_epsilon:.{_DIGITS}g} "
            "(Gaussian releases add up by their squares, so this can exceed what remains)"
        )
        self.lineage = lineage
        self.forecast = forecast


def forecast(budget: Budget, spent: Fraction, request: Request) -> Forecast:
    """What ``request`` would do to a budget of which Σμ² = ``spent`` is gone; changes nothing."""
    spent_epsilon = accounting.total_epsilon(spent, budget.delta)
    total = spent + request.spend
    try:
        after = accounting.total_epsilon(total, budget.delta)
    except ParameterError:
        after = None
    return Forecast(
        budget=budget,
        request=request,
        fits=accounting.fits(total, budget.epsilon, budget.delta),
        spent_epsilon=spent_epsilon,
        remaining_epsilon=max(0.0, budget.epsilon - spent_epsilon),
        largest_epsilon=_largest(budget, spent, request.delta),
        after_epsilon=after,
    )


class Ledger:
    """A ledger database. Make one with :meth:`create`, use it with :meth:`open`.

    Every method is one transaction, and every method that records an event may be repeated: the
    second call finds the event and changes nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = sql.create_engine(
            "sqlite://", creator=self._connect, poolclass=sql.pool.NullPool
        )
        self._secret = b""

    @classmethod
    def create(cls, url: str) -> Ledger:
        """Make the database, readable by its owner only; a ledger already there is kept.

        Raises
        ------
        ConfigurationError
            The URL is no SQLite file, or its folder does not exist.
        BudgetRefused
            The file holds something else, or lies on a network file system.
        """
        path = _sqlite_path(url)
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"ledger {path}: its folder {path.parent} does not exist; make the folder first"
            )
        _refuse_network(path)
        if not os.path.lexists(path):
            cls._make_file(path)
        cls(path)._set_up()
        return cls.open(url)

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open an existing ledger.

        Raises
        ------
        BudgetRefused
            The database is missing, unreadable, damaged, not a ledger, or on a network file system.
        """
        path = _sqlite_path(url)
        if not os.path.exists(path):
            raise BudgetRefused(
                f"no ledger at {path}: without one nothing can be released. If this gallery was "
                f"never released, make one with {_INIT}; otherwise put the ledger back"
            )
        _refuse_network(path)
        ledger = cls(path)
        with ledger._reading() as connection:
            ledger._secret = ledger._verified_secret(connection)
        return ledger

    @classmethod
    def _make_file(cls, path: Path) -> None:
        """Let a complete ledger appear under its name: nobody ever opens half of one."""
        try:
            # mkstemp makes the file 0600; a link, unlike a rename, never replaces a ledger.
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            os.close(handle)
            try:
                cls(Path(temporary))._set_up()
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                os.unlink(temporary)
            sync_folder(path.parent)
        except OSError as error:
            raise ConfigurationError(f"ledger {path} cannot be made: {error.strerror}") from error

    def _set_up(self) -> None:
        """Fill an empty database; one that holds anything is left as it is."""
        with self._writing() as connection:
            if sql.inspect(connection).get_table_names():
                return
            _schema.create_all(connection)
            for trigger in _SQLITE_TRIGGERS:
                connection.exec_driver_sql(trigger)
            identity = {"format": _FORMAT, "secret": secrets.token_hex(32)}
            connection.execute(sql.insert(_identity).values(identity))

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
        with self._writing() as connection:
            account = self._find(connection, lineage)
            if account is not None and account.budget != budget:
                raise BudgetRefused(
                    f"lineage {lineage} was opened with a budget of {account.budget}, but the "
                    f"configuration says {budget}; a budget is not changed by editing the "
                    "configuration, so set it back"
                )
            if account is None:
                self._append(connection, lineage, "opened", "", asdict(budget))
            self._join(connection, lineage, fingerprint)
            return self._get(connection, lineage)

    def register_version(self, lineage: str, fingerprint: bytes) -> None:
        """Let a later version of a gallery share the account of its lineage."""
        with self._writing() as connection:
            self._get(connection, lineage)
            self._join(connection, lineage, fingerprint)

    def lineage_of(self, fingerprint: bytes) -> str | None:
        """The lineage under which this gallery content is held, if any."""
        with self._reading() as connection:
            return self._holder(connection, fingerprint)

    def lineages(self) -> tuple[str, ...]:
        """All lineages with an account, oldest first."""
        opened = sql.select(_journal.c.lineage).where(_journal.c.kind == "opened")
        with self._reading() as connection:
            return tuple(connection.scalars(opened.order_by(_journal.c.sequence)))

    def find_account(self, lineage: str) -> Account | None:
        """The account of a lineage; None where none was opened."""
        with self._reading() as connection:
            return self._find(connection, lineage)

    def account(self, lineage: str) -> Account:
        """The account of a lineage; BudgetRefused where none was opened."""
        with self._reading() as connection:
            return self._get(connection, lineage)

    def forecast(self, lineage: str, request: Request) -> Forecast:
        """What a new release would do to the lineage's budget; writes nothing.

        Raises
        ------
        BudgetRefused
            There is no such account, or its releases are under another adjacency.
        """
        account = self.account(lineage)
        _check_adjacency(account, request)
        return forecast(account.budget, account.spent, request)

    def reserve(self, lineage: str, release_id: str, request: Request) -> Entry:
        """Spend a release's budget, in one transaction, before its key or noise exists.

        A release that was reserved before with the same request is returned and spends nothing.

        Raises
        ------
        OverspendRefused
            The release does not fit what is left of the budget.
        BudgetRefused
            No such account, the release id was used otherwise, or another adjacency is in force.
        """
        with self._writing() as connection:
            account = self._get(connection, lineage)
            entry = account.find(release_id)
            if entry is not None:
                return _reserved_before(entry, request)
            _check_adjacency(account, request)
            outcome = forecast(account.budget, account.spent, request)
            if not outcome.fits:
                raise OverspendRefused(lineage, outcome)
            spend = request.spend
            body = {**asdict(request), "spend": f"{spend.numerator}/{spend.denominator}"}
            self._append(connection, lineage, "reserved", release_id, body)
            return self._entry(connection, lineage, release_id)

    def key_committed(self, lineage: str, release_id: str) -> str | None:
        """The commitment of the release's key, or None before :meth:`commit_key`."""
        with self._reading() as connection:
            return self._entry(connection, lineage, release_id).key_commitment

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
        with self._writing() as connection:
            entry = self._entry(connection, lineage, release_id)
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
            body = {"commitment": commitment}
            self._append(connection, lineage, "key", release_id, body)
            return self._entry(connection, lineage, release_id)

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
        with self._writing() as connection:
            entry = self._entry(connection, lineage, release_id)
            if entry.state == ending:
                return entry
            if entry.state != "reserved":
                raise BudgetRefused(f"release {release_id} {refusal} (since {entry.settled_at})")
            self._append(connection, lineage, ending, release_id, {})
            return self._entry(connection, lineage, release_id)

    def _find(self, connection: sql.Connection, lineage: str) -> Account | None:
        rows = connection.execute(
            sql.select(_journal).where(_journal.c.lineage == lineage).order_by(_journal.c.sequence)
        )
        try:
            return _replayed(lineage, rows)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"the journal of lineage {lineage} makes no sense") from error

    def _get(self, connection: sql.Connection, lineage: str) -> Account:
        account = self._find(connection, lineage)
        if account is None:
            raise BudgetRefused(f"ledger {self.path} has no account for lineage {lineage}")
        return account

    def _entry(self, connection: sql.Connection, lineage: str, release_id: str) -> Entry:
        entry = self._get(connection, lineage).find(release_id)
        if entry is None:
            raise BudgetRefused(
                f"release {release_id} of lineage {lineage} was never reserved in {self.path}"
            )
        return entry

    def _join(self, connection: sql.Connection, lineage: str, fingerprint: bytes) -> None:
        holder = self._holder(connection, fingerprint)
        if holder is None:
            self._append(connection, lineage, "version", self._keyed(fingerprint), {})
        elif holder != lineage:
            raise BudgetRefused(
                f"this gallery is already held under lineage {holder}, found it under lineage "
                f"{lineage} as well; a second lineage would be a second budget for the same "
                f"records, so carry it with `--lineage {holder}`"
            )

    def _holder(self, connection: sql.Connection, fingerprint: bytes) -> str | None:
        versions = sql.select(_journal.c.lineage).where(_journal.c.kind == "version")
        matching = versions.where(_journal.c.subject == self._keyed(fingerprint))
        return connection.scalars(matching).one_or_none()

    def _keyed(self, fingerprint: bytes) -> str:
        """HMAC, so that the database is no membership test for guessed galleries."""
        return hmac.new(self._secret, fingerprint, hashlib.sha256).hexdigest()

    def _append(
        self,
        connection: sql.Connection,
        lineage: str,
        kind: str,
        subject: str,
        body: dict[str, Any],
    ) -> None:
        """The only statement that writes to the journal."""
        connection.execute(
            sql.insert(_journal).values(
                lineage=lineage,
                kind=kind,
                subject=subject,
                body=json.dumps(body, sort_keys=True, allow_nan=False),
                recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )

    def _verified_secret(self, connection: sql.Connection) -> bytes:
        tables = set(sql.inspect(connection).get_table_names())
        if not {_identity.name, _journal.name} <= tables:
            found = f"the tables {', '.join(sorted(tables))}" if tables else "an empty database"
            raise BudgetRefused(
                f"{self.path} is not a ScoreShield ledger: it holds {found}. Name another file "
                f"under `ledger: url:`, and make it with {_INIT}"
            )
        fault = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if fault != "ok":
            raise self._damaged(str(fault))
        identity = connection.execute(sql.select(_identity)).all()
        if [row.format for row in identity] != [_FORMAT]:
            raise BudgetRefused(
                f"{self.path} holds a ledger of format {[row.format for row in identity]}, "
                f"expected {_FORMAT}; use the version of ScoreShield that made it, or name another "
                f"file and make it with {_INIT}"
            )
        try:
            return bytes.fromhex(identity[0].secret)
        except (TypeError, ValueError) as error:
            raise self._damaged("its secret is unreadable") from error

    def _damaged(self, found: str) -> BudgetRefused:
        words = " ".join(found.split())
        return BudgetRefused(
            f"ledger {self.path} is damaged ({words}): it cannot say what was spent. Restore the "
            f"newest backup; {_INIT} makes a new one only for a gallery that was never released"
        )

    def _writing(self) -> contextlib.AbstractContextManager[sql.Connection]:
        """A transaction that no other writer can enter before it ends."""
        return self._transaction("BEGIN IMMEDIATE")

    def _reading(self) -> contextlib.AbstractContextManager[sql.Connection]:
        """A transaction that sees one moment of the ledger."""
        return self._transaction("BEGIN")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(begin)
                yield connection
        except sql.exc.DBAPIError as error:
            raise self._explained(error) from error

    def _explained(self, error: sql.exc.DBAPIError) -> BudgetRefused | RunFailed:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return RunFailed(
                f"ledger {self.path} was held by another process for {_BUSY_SECONDS:g} s; nothing "
                "was spent, run the command again"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged(str(error.orig))
        return BudgetRefused(
            f"ledger {self.path} cannot be used ({error.orig}); check its owner, its permissions "
            f"and the free disk space, or make one elsewhere with {_INIT} if this gallery was "
            "never released"
        )

    def _connect(self) -> sqlite3.Connection:
        """Open the file, never making one, with transactions that survive a power cut."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
        )
        # EXTRA is FULL plus a sync of the folder once the rollback journal is gone; with FULL alone
        # a power cut can bring that journal back, and with it the budget that was just spent.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection


def _replayed(lineage: str, rows: Iterable[sql.Row[Any]]) -> Account | None:
    """The account that a lineage's events, in order, add up to."""
    account: Account | None = None
    entries: dict[str, Entry] = {}
    for row in rows:
        body, subject = json.loads(row.body), row.subject
        match row.kind:
            case "opened":
                account = Account(lineage, Budget(**body), row.recorded_at)
            case "reserved":
                spend = Fraction(body.pop("spend"))
                request = Request(**body)
                entries[subject] = Entry(
                    subject, request, spend, "reserved", None, row.recorded_at, None
                )
            case "key":
                entries[subject] = replace(entries[subject], key_commitment=body["commitment"])
            case "committed" | "abandoned":
                entries[subject] = replace(
                    entries[subject], state=row.kind, settled_at=row.recorded_at
                )
    return replace(account, entries=tuple(entries.values())) if account is not None else None


def _reserved_before(entry: Entry, request: Request) -> Entry:
    """The entry that a repeated reservation finds, if it is the same and still alive."""
    if entry.request != request:
        raise BudgetRefused(
            f"release {entry.release_id} was reserved with {entry.request}, found {request}; "
            "a release never changes, so set the configuration back or choose another release id"
        )
    if entry.state == "abandoned":
        raise BudgetRefused(
            f"release {entry.release_id} was abandoned at {entry.settled_at}; what it spent stays "
            "spent, so choose another release id"
        )
    return entry


def _check_adjacency(account: Account, request: Request) -> None:
    """Spends add up to a guarantee only where all of them are for the same neighbours."""
    if account.adjacency not in (None, request.adjacency):
        raise BudgetRefused(
            f"the releases of lineage {account.lineage} are under adjacency {account.adjacency}, "
            f"found a release under {request.adjacency}; spends under different adjacencies do not "
            f"add up to one guarantee, so release under {account.adjacency}"
        )


def _largest(budget: Budget, spent: Fraction, delta: float) -> float:
    """The largest ε at δ that still fits, as the number of six digits that people are shown."""
    largest = accounting.largest_epsilon(spent, budget.epsilon, budget.delta, delta)
    if largest == 0:
        return 0.0
    nearest = float(Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN).create_decimal(largest))
    total = spent + accounting.spend_of(1.0, noise_multiplier(nearest, delta))
    if accounting.fits(total, budget.epsilon, budget.delta):
        return nearest
    return float(Context(prec=_DIGITS, rounding=ROUND_FLOOR).create_decimal(largest))


def _sqlite_path(url: str) -> Path:
    """The file that a `sqlite:///` URL names."""
    try:
        parsed = sql.make_url(url)
    except sql.exc.ArgumentError:
        raise ConfigurationError(
            f"ledger url: found {url!r}, expected sqlite:/// and a file"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(
            f"ledger url: found a {parsed.get_backend_name()} database, expected sqlite:/// and a "
            "file; other databases are not supported yet"
        )
    if parsed.query or parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            f"ledger url: found {url!r}, expected sqlite:/// and a file; a ledger in memory would "
            "forget what was spent"
        )
    return Path(str(parsed.database)).resolve()


def _refuse_network(path: Path) -> None:
    kind = network_filesystem(path.parent)
    if kind is not None:
        raise BudgetRefused(
            f"ledger {path} lies on a network file system ({kind}), where SQLite's locks are "
            "unreliable and two jobs could spend the same budget; put it on a local disk"
        )
