"""Which databases can hold a ledger, by their URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from pipeline.ledger import Ledger


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("mysql://someone@example.org/ledger", "found a mysql database"),
        ("postgresql+asyncpg://someone@example.org/ledger", "found the driver"),
        ("postgresql://someone:secret@example.org", "without a database"),
        ("postgresql://someone:secret@example.org:port/ledger", "found no database URL"),
        ("ledger.db", "expected sqlite:///"),
        ("sqlite://", "in memory would forget"),
        ("sqlite:///:memory:", "in memory would forget"),
    ],
)
def test_a_url_of_another_kind_is_refused(bad: str, message: str) -> None:
    for attempt in (Ledger.open, Ledger.create):
        with pytest.raises(ConfigurationError, match=message) as refusal:
            attempt(bad, Path("private"))
        assert "secret" not in str(refusal.value)
