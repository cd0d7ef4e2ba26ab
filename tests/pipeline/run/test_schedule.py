"""Schedules: which release is due, and how long a budget lasts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.model import Config
from pipeline.config.period import period_at
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError
from pipeline.ledger import Account, Budget, SpendRequest
from pipeline.ledger.account import Entry
from pipeline.run.schedule import fitting_releases, outlook, scheduled
from scoreshield.privacy import accounting

REQUEST = SpendRequest(1.0, 1e-6, 2.0, 10.0, "record")


def configured(folder: Path, **changes: Any) -> Config:
    file = folder / "release.yaml"
    settings = {
        "gallery": "gallery.npy",
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 3.0, "delta": 1e-6},
        "release": "similar",
        "period": "monthly",
    }
    file.write_text(yaml.safe_dump({**settings, **changes}))
    return load_config(file)


def budget_for(releases: int) -> Budget:
    """One that this many requests use up, and one more would not fit."""
    spent = (releases + Fraction(1, 2)) * REQUEST.spend
    return Budget(accounting.total_epsilon(spent, 1e-6), 1e-6)


def spent_on(names: list[str], budget: Budget) -> Account:
    entries = [
        Entry(name, REQUEST, REQUEST.spend, "committed", None, "2026-01-01", None) for name in names
    ]
    return Account("0" * 32, budget, "2026-01-01", tuple(entries))


def test_the_present_period_names_the_release(tmp_path: Path) -> None:
    config = configured(tmp_path)
    due = scheduled(config)
    assert due.release == f"similar-{period_at('monthly', datetime.now(UTC)).name}"
    assert due.period is None
    assert scheduled(due) == due


def test_a_missed_period_can_be_named_and_a_coming_one_can_not(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert scheduled(config, "2024-02").release == "similar-2024-02"
    with pytest.raises(ConfigurationError, match="2999-01: it begins on 2999-01-01"):
        scheduled(config, "2999-01")


def test_a_configuration_without_schedule_has_no_periods(tmp_path: Path) -> None:
    config = configured(tmp_path, period=None)
    assert scheduled(config) is config
    with pytest.raises(ConfigurationError, match="this configuration has no schedule"):
        scheduled(config, "2024-02")
    with pytest.raises(ConfigurationError, match="this configuration has no schedule"):
        outlook(config, None, budget_for(3), REQUEST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": None}, "period: expected a name in 'release' as well"),
        ({"release": "a" * 54}, "release: expected at most 53 characters"),
        ({"period": "monthly "}, "period: "),
        ({"period": "hourly"}, "period: "),
    ],
)
def test_a_schedule_that_names_no_release_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configured(tmp_path, **changes)


@pytest.mark.parametrize("releases", [0, 1, 5, 37])
def test_the_outlook_counts_exactly_what_the_ledger_would_let_through(
    tmp_path: Path, releases: int
) -> None:
    budget = budget_for(releases)
    found = outlook(configured(tmp_path), None, budget, REQUEST)
    assert found.fitting == releases
    assert accounting.fits(releases * REQUEST.spend, budget.epsilon, budget.delta)
    assert not accounting.fits((releases + 1) * REQUEST.spend, budget.epsilon, budget.delta)
    period = period_at("monthly", datetime.now(UTC))
    for name, epsilon in found.periods:
        assert name == period.name
        assert epsilon <= budget.epsilon
        period = period.next()
    for _ in range(releases - len(found.periods)):
        period = period.next()
    assert found.first_refused == period.name


def test_periods_that_are_released_are_not_counted_again(tmp_path: Path) -> None:
    now = period_at("monthly", datetime.now(UTC))
    account = spent_on([f"similar-{now.name}", "other"], budget_for(4))
    found = outlook(configured(tmp_path), account, account.budget, REQUEST)
    assert found.fitting == 2
    assert [name for name, _ in found.periods] == [now.next().name, now.next().next().name]


def test_a_budget_beyond_sight_is_counted_to_a_limit(tmp_path: Path) -> None:
    tiny = replace(REQUEST, sigma=1e9)
    assert fitting_releases(Fraction(0), tiny.spend, Budget(50.0, 1e-6)) == 2**20
    found = outlook(configured(tmp_path), None, Budget(50.0, 1e-6), tiny)
    assert found.first_refused is None
    assert "1048576 more releases fit" in found.to_text()
