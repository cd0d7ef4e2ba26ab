"""Scheduled releases: one release a period, named for it, and how many periods a budget lasts.

``release:`` and ``period:`` together name the release (``monthly`` and ``2026-11`` give
``monthly-2026-11``), so a job that is started twice in a period means one release: it resumes it or
reports it, and the ledger lets its budget be spent once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from pipeline.config.model import Config
from pipeline.config.period import Period, period_at, period_named
from pipeline.errors import ConfigurationError
from pipeline.ledger import Account, Budget, SpendRequest
from scoreshield.privacy import accounting

_MOST_PERIODS = 2**20
_SHOWN_PERIODS = 12


def current_period(config: Config, named: str | None = None) -> Period | None:
    """The period to release for: ``named``, or the present one; None without a ``period:``.

    Raises
    ------
    ConfigurationError
        The name is of another kind of period, of one that has not begun, or there is no schedule.
    """
    if config.period is None:
        if named is not None:
            raise ConfigurationError(
                f"--period {named}: this configuration has no schedule; add 'period: monthly' or "
                "another kind to it, or leave the option out"
            )
        return None
    now = datetime.now(UTC)
    if named is None:
        return period_at(config.period, now)
    period = period_named(config.period, named)
    if period.begins > now:
        raise ConfigurationError(
            f"--period {named}: it begins on {period.first_day} (UTC), which is still ahead; a "
            "period can be made up for later, not released in advance"
        )
    return period


def in_period(config: Config, period: Period | None) -> Config:
    """The configuration of one period's release: named for it, and no schedule any more."""
    if period is None:
        return config
    return config.model_copy(update={"release": release_name(config, period), "period": None})


def scheduled(config: Config, named: str | None = None) -> Config:
    """The configuration of the present period's release, or of the named one's.

    A configuration without a schedule is returned as it is.

    Raises
    ------
    ConfigurationError
        As :func:`current_period`.
    """
    return in_period(config, current_period(config, named))


def release_name(config: Config, period: Period) -> str:
    """Name of the release of a period."""
    return f"{config.release}-{period.name}"


@dataclass(frozen=True)
class Outlook:
    """How long a budget lasts: the coming releases that fit, one a period."""

    budget: Budget
    fitting: int
    """How many more releases fit; at most 2^20 are counted."""
    periods: tuple[tuple[str, float], ...]
    """The next of them: the period's name, and ε spent after it at the budget's δ."""
    first_refused: str | None
    """The first period whose release would be refused; None where it is out of sight."""

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "fitting": self.fitting,
            "periods": [
                {"period": name, "epsilon_after": epsilon} for name, epsilon in self.periods
            ],
            "first_refused": self.first_refused,
        }

    def to_text(self) -> str:
        """For a person."""
        if not self.fitting:
            return (
                f"schedule: the budget of {self.budget} is used up; the release of "
                f"{self.first_refused} would be refused"
            )
        word = "release fits" if self.fitting == 1 else "releases fit"
        lines = [f"schedule: {self.fitting} more {word} the budget of {self.budget}"]
        lines += [
            f"  {name}: epsilon {epsilon:.4g} spent after it" for name, epsilon in self.periods
        ]
        if self.first_refused is not None:
            more = self.fitting - len(self.periods)
            skipped = f"{more} more in between; " if more else ""
            lines.append(f"  {self.first_refused}: refused ({skipped}the budget is used up)")
        return "\n".join(lines)


def outlook(
    config: Config, account: Account | None, budget: Budget, request: SpendRequest
) -> Outlook:
    """How many of a schedule's coming periods a budget lasts, each asking for ``request``.

    The first one counted is the first period, from the present one on, that has no release yet.

    Raises
    ------
    ConfigurationError
        The configuration has no schedule.
    """
    period = current_period(config)
    if period is None:
        raise ConfigurationError(
            "--periods: this configuration has no schedule; add 'period: monthly' or another kind "
            "to it, or leave the option out"
        )
    while account is not None and account.find(release_name(config, period)) is not None:
        period = period.next()
    spent = account.spent if account is not None else Fraction(0)
    fitting = fitting_releases(spent, request.spend, budget)
    shown: list[tuple[str, float]] = []
    for count in range(1, min(fitting, _SHOWN_PERIODS) + 1):
        total = accounting.total_epsilon(spent + count * request.spend, budget.delta)
        shown.append((period.name, total))
        period = period.next()
    return Outlook(budget, fitting, tuple(shown), _refused_after(period, fitting - len(shown)))


def fitting_releases(spent: Fraction, spend: Fraction, budget: Budget) -> int:
    """The largest k with spent + k·spend within the budget; at most 2^20.

    Spends of Gaussian releases add up, Σμ², so what fits is found by bisection.
    """
    low, high = 0, _MOST_PERIODS
    while low < high:
        middle = (low + high + 1) // 2
        if accounting.fits(spent + middle * spend, budget.epsilon, budget.delta):
            low = middle
        else:
            high = middle - 1
    return low


def _refused_after(period: Period, more: int) -> str | None:
    """The name of the period ``more`` after this one; None beyond the calendar."""
    if more >= _MOST_PERIODS - _SHOWN_PERIODS:
        return None
    try:
        for _ in range(more):
            period = period.next()
    except OverflowError:
        return None
    return period.name
