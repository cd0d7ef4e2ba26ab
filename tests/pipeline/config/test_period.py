"""Calendar periods: names, order, beginnings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.period import PeriodKind, period_at, period_named
from pipeline.errors import ConfigurationError

KINDS: tuple[PeriodKind, ...] = ("yearly", "quarterly", "monthly", "weekly", "daily")
MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
)


@pytest.mark.parametrize(
    ("kind", "moment", "name"),
    [
        ("yearly", datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "2026"),
        ("quarterly", datetime(2026, 10, 1, tzinfo=UTC), "2026-q4"),
        ("quarterly", datetime(2026, 9, 30, 23, 59, tzinfo=UTC), "2026-q3"),
        ("monthly", datetime(2026, 11, 29, tzinfo=UTC), "2026-11"),
        ("daily", datetime(2026, 11, 29, tzinfo=UTC), "2026-11-29"),
        # ISO 8601: the first week of 2027 begins on Monday, 4 January.
        ("weekly", datetime(2027, 1, 3, tzinfo=UTC), "2026-w53"),
        ("weekly", datetime(2027, 1, 4, tzinfo=UTC), "2027-w01"),
        # A local midnight is not the period's: 1 December in Tokyo is 30 November in UTC.
        ("monthly", datetime(2026, 12, 1, 3, tzinfo=timezone(timedelta(hours=9))), "2026-11"),
    ],
)
def test_a_moment_has_its_period(kind: PeriodKind, moment: datetime, name: str) -> None:
    assert period_at(kind, moment).name == name


@pytest.mark.parametrize("kind", KINDS)
@given(moment=MOMENTS)
def test_periods_follow_one_another_without_gap_or_overlap(
    kind: PeriodKind, moment: datetime
) -> None:
    period = period_at(kind, moment)
    following = period.next()
    assert period.begins <= moment < following.begins
    assert period_at(kind, following.begins - timedelta(microseconds=1)) == period
    assert period_named(kind, period.name) == period


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("monthly", "2026-13"),
        ("monthly", "2026-11-29"),
        ("monthly", "november"),
        ("weekly", "2026-w54"),
        ("weekly", "2025-w53"),
        ("quarterly", "2026-q5"),
        ("daily", "2026-02-30"),
        ("yearly", "0000"),
        ("daily", "../2026"),
    ],
)
def test_a_name_of_no_such_period_is_refused(kind: PeriodKind, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"expected a {kind} period such as"):
        period_named(kind, name)
