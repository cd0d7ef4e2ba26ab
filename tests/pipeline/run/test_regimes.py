"""A regime is a record: one that the product does not have is registered, released and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError
from pipeline.forecast.preview import preview
from pipeline.reader import lazy_matrix
from pipeline.reader.description import render_markdown
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.regimes import REGIMES
from scoreshield.regimes import registry
from tests.harness import toy_regime
from tests.harness.curator import Curator, N

SETTINGS = {
    "regime": toy_regime.NAME,
    "privacy": {"epsilon": 8.0, "delta": 1e-6, "adjacency": "record"},
}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, curator: Curator) -> Curator:
    """A curator whose product has one regime more, by a line in each registry."""
    monkeypatch.setitem(registry.REGIMES, toy_regime.NAME, toy_regime.WHAT)
    monkeypatch.setitem(REGIMES, toy_regime.NAME, toy_regime.HOW)
    monkeypatch.setitem(lazy_matrix.VIEWS, toy_regime.NAME, lazy_matrix.Scores)
    curator.settings = {
        name: value for name, value in curator.settings.items() if name != "projection"
    }
    return curator


def test_both_registries_know_the_same_regimes() -> None:
    assert list(REGIMES) == list(registry.REGIMES)


def test_an_unknown_regime_is_refused_by_name(curator: Curator) -> None:
    with pytest.raises(ConfigurationError, match="'gram' or 'scores', found 'chain'"):
        curator.load(**SETTINGS)


@pytest.mark.parametrize("processes", [False, True])
def test_a_toy_regime_is_planned_released_verified_and_read(
    registered: Curator, processes: bool
) -> None:
    registered.processes = processes
    assert (
        "chain of 300 records" in preview(load_config(registered.configure(**SETTINGS))).to_text()
    )
    outcome = registered.release(**SETTINGS)
    assert outcome.newly
    assert not registered.release(**SETTINGS).newly
    registered.assert_spent_once(**SETTINGS)
    path = outcome.path
    assert isinstance(path, Path)
    assert all(check.ok for check in verify_release(path).checks)
    released = open_release(path)
    assert released.manifest.regime == toy_regime.NAME
    assert "with their next" in render_markdown(released.manifest)
    values = released.block(slice(0, 1), slice(0, N - 1))
    assert values.shape == (1, N - 1)
    assert np.abs(values).max() <= 1.0


def test_its_arrays_are_its_own(registered: Curator) -> None:
    with pytest.raises(ConfigurationError, match=r"regime chain publishes \[chain\], found gram"):
        registered.load(**SETTINGS, arrays=["gram"])
