"""The file of rates: kept, found again, and refused where it is none."""

from __future__ import annotations

import json
import stat
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pipeline.config.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.forecast.rates_file import (
    MachineRates,
    here_and_now,
    load_rates,
    save_rates,
)
from pipeline.plan.rates import Rates
from pipeline.storage.layout import MEASURED_RATES

RATES = Rates(**dict.fromkeys((field.name for field in fields(Rates)), 2.5))


@pytest.fixture
def measured() -> MachineRates:
    return here_and_now(RATES, Cluster(), "int8")


def test_what_is_saved_is_found_again_by_its_owner_alone(
    tmp_path: Path, measured: MachineRates
) -> None:
    assert load_rates(tmp_path / "private") is None
    path = save_rates(tmp_path / "private", measured)
    assert load_rates(tmp_path / "private") == measured
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_differs_where_it_was_measured(measured: MachineRates) -> None:
    assert measured.differences(Cluster(), "int8") == []
    # More workers are no other machines; a forecast says so itself.
    assert measured.differences(Cluster(workers=64), "int8") == []


def test_what_differs_is_named(measured: MachineRates) -> None:
    elsewhere = replace(measured, host="elsewhere", software={"numpy": "1.0"})
    found = elsewhere.differences(Cluster(threads_per_worker=4), "float32")
    assert found[0].startswith("host elsewhere, now ")
    assert "noisy values int8, now float32" in found
    assert "threads per worker 1, now 4" in found
    assert any(words.startswith("numpy 1.0, now ") for words in found)


@pytest.mark.parametrize(
    ("key", "value"),
    [("noise_samples", 0.0), ("noise_samples", -1.0), ("noise_samples", "fast"), ("other", 1.0)],
)
def test_what_is_no_rate_is_refused(
    tmp_path: Path, measured: MachineRates, key: str, value: object
) -> None:
    path = save_rates(tmp_path, measured)
    content = json.loads(path.read_text())
    content["rates"][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="--calibrate"):
        load_rates(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "rates": 3}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MEASURED_RATES).write_text(text)
    with pytest.raises(ConfigurationError, match="expected rates"):
        load_rates(tmp_path)
