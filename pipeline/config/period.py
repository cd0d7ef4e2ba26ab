"""Calendar periods of a schedule: their names, order and beginnings. All of them are in UTC.

A period's name is part of a release's name, so that whoever starts a scheduled release within one
period, on whatever host, means the same release.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from pipeline.errors import ConfigurationError

PeriodKind = Literal["yearly", "quarterly", "monthly", "weekly", "daily"]


@dataclass(frozen=True)
class Period:
    """One period: ``2026``, ``2026-q4``, ``2026-11``, ``2026-w48`` (ISO 8601) or ``2026-11-29``."""

    kind: PeriodKind
    first_day: date

    @property
    def name(self) -> str:
        """The period as part of a release's name."""
        return _CALENDARS[self.kind].name(self.first_day)

    @property
    def begins(self) -> datetime:
        """Midnight, UTC, at which the period begins."""
        return datetime(self.first_day.year, self.first_day.month, self.first_day.day, tzinfo=UTC)

    def next(self) -> Period:
        """The period after this one."""
        longest = _CALENDARS[self.kind].longest
        return period_at(self.kind, self.begins + timedelta(days=longest))


def period_at(kind: PeriodKind, moment: datetime) -> Period:
    """The period of a moment, which carries its time zone."""
    return Period(kind, _CALENDARS[kind].first_day(moment.astimezone(UTC).date()))


def period_named(kind: PeriodKind, name: str) -> Period:
    """The period of a name.

    Raises
    ------
    ConfigurationError
        It names no period of this kind.
    """
    calendar = _CALENDARS[kind]
    found = re.fullmatch(calendar.pattern, name)
    try:
        if found is not None:
            return Period(kind, calendar.day_of(*(int(part) for part in found.groups())))
    except ValueError:
        pass
    raise ConfigurationError(
        f"period: expected a {kind} period such as {calendar.example}, found {name!r}"
    )


@dataclass(frozen=True)
class _Calendar:
    """How one kind of period is counted."""

    pattern: str
    example: str
    name: Callable[[date], str]
    first_day: Callable[[date], date]
    day_of: Callable[..., date]
    longest: int
    """Days from one beginning that always lie within the next period."""


def _quarter_start(day: date) -> date:
    return day.replace(month=3 * ((day.month - 1) // 3) + 1, day=1)


def _week_name(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-w{week:02}"


_CALENDARS: dict[PeriodKind, _Calendar] = {
    "yearly": _Calendar(
        r"(\d{4})",
        "2026",
        lambda day: f"{day.year:04}",
        lambda day: day.replace(month=1, day=1),
        lambda year: date(year, 1, 1),
        366,
    ),
    "quarterly": _Calendar(
        r"(\d{4})-q([1-4])",
        "2026-q4",
        lambda day: f"{day.year:04}-q{(day.month + 2) // 3}",
        _quarter_start,
        lambda year, quarter: date(year, 3 * quarter - 2, 1),
        93,
    ),
    "monthly": _Calendar(
        r"(\d{4})-(\d{2})",
        "2026-11",
        lambda day: f"{day.year:04}-{day.month:02}",
        lambda day: day.replace(day=1),
        lambda year, month: date(year, month, 1),
        31,
    ),
    "weekly": _Calendar(
        r"(\d{4})-w(\d{2})",
        "2026-w48",
        _week_name,
        lambda day: day - timedelta(days=day.weekday()),
        lambda year, week: date.fromisocalendar(year, week, 1),
        7,
    ),
    "daily": _Calendar(
        r"(\d{4})-(\d{2})-(\d{2})",
        "2026-11-29",
        lambda day: day.isoformat(),
        lambda day: day,
        date,
        1,
    ),
}
