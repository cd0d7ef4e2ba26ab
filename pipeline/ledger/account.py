"""Accounts: what the events of a lineage add up to, and what its budget still allows."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context
from fractions import Fraction
from typing import Literal

from pipeline.errors import BudgetRefused
from pipeline.ledger.journal import Row
from scoreshield.errors import ParameterError
from scoreshield.privacy import accounting
from scoreshield.privacy.calibration import check_privacy, noise_multiplier

State = Literal["reserved", "committed", "abandoned"]

_DIGITS = 6


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
class SpendRequest:
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
    request: SpendRequest
    spend: Fraction
    state: State
    key_commitment: str | None
    """SHA-256 of the release key in hexadecimal; None until the key is made."""
    reserved_at: str
    settled_at: str | None
    """When the release was committed or abandoned; UTC, ISO 8601, as ``reserved_at``."""


@dataclass(frozen=True)
class SpendForecast:
    """What a request would do to a budget."""

    budget: Budget
    request: SpendRequest
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
    def cumulative_epsilons(self) -> tuple[float, ...]:
        """ε at the budget's δ after each release in turn, rounded up."""
        totals = itertools.accumulate(entry.spend for entry in self.entries)
        return tuple(accounting.total_epsilon(total, self.budget.delta) for total in totals)

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

    def __init__(self, lineage: str, forecast: SpendForecast) -> None:
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


def forecast_spend(budget: Budget, spent: Fraction, request: SpendRequest) -> SpendForecast:
    """What ``request`` would do to a budget of which Σμ² = ``spent`` is gone; changes nothing."""
    spent_epsilon = accounting.total_epsilon(spent, budget.delta)
    total = spent + request.spend
    try:
        after = accounting.total_epsilon(total, budget.delta)
    except ParameterError:
        after = None
    return SpendForecast(
        budget=budget,
        request=request,
        fits=accounting.fits(total, budget.epsilon, budget.delta),
        spent_epsilon=spent_epsilon,
        remaining_epsilon=max(0.0, budget.epsilon - spent_epsilon),
        largest_epsilon=_largest(budget, spent, request.delta),
        after_epsilon=after,
    )


def replayed(lineage: str, rows: Iterable[Row]) -> Account | None:
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
                request = SpendRequest(**body)
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


def reserved_before(entry: Entry, request: SpendRequest) -> Entry:
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


def admitted(account: Account, release_id: str, request: SpendRequest) -> Entry | None:
    """The entry of the same reservation, made before; None where a new one fits the budget.

    Raises
    ------
    OverspendRefused
        The release does not fit what is left of the budget.
    BudgetRefused
        The release id was used otherwise, or another adjacency is in force.
    """
    entry = account.find(release_id)
    if entry is not None:
        return reserved_before(entry, request)
    check_adjacency(account, request)
    outcome = forecast_spend(account.budget, account.spent, request)
    if not outcome.fits:
        raise OverspendRefused(account.lineage, outcome)
    return None


def check_adjacency(account: Account, request: SpendRequest) -> None:
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
