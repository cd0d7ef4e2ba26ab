"""Calibration on a real cluster, and plans that use it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.forecast.machine_rates import Split, measure_rates
from pipeline.forecast.preview import plan_of_size, planned_size, preview
from pipeline.forecast.rates_file import MachineRates, load_rates
from pipeline.plan.release import ReleasePlan
from pipeline.progress import JsonLines
from pipeline.run.record import Timings
from pipeline.run.release import release
from pipeline.storage.layout import MEASURED_RATES

SETTINGS: dict[str, Any] = {
    "gallery": "nowhere.npy",
    "privacy": {"epsilon": 200.0, "delta": 1e-6, "adjacency": "record"},
    "projection": {"method": "nearest"},
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 200.0, "delta": 1e-6, "create": True},
    "cluster": {"workers": 2, "memory_limit": "4GiB"},
}


def planned(config: Config, *sizes: int) -> ReleasePlan:
    return plan_of_size(config, planned_size(config, *sizes))


def configured(folder: Path, **changes: Any) -> Path:
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, **changes}))
    return path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, MachineRates]:
    """A configuration whose gallery doesn't exist, and what was measured for it."""
    folder = tmp_path_factory.mktemp("calibrated")
    config = load_config(configured(folder))
    with (folder / "log").open("w") as log:
        return config, measure_rates(config, planned(config, 5000, 16), JsonLines(log))


def test_rates_are_measured_without_gallery_or_ledger(
    calibrated: tuple[Config, MachineRates],
) -> None:
    config, found = calibrated
    assert load_rates(config.private) == found
    assert all(np.isfinite(rate) and rate > 0 for rate in asdict(found.rates).values())
    # Rough bounds, for a slip of a thousand, on any machine and however busy.
    assert 1e5 < found.rates.noise_samples < 1e10
    assert 1e7 < found.rates.product_flops < 1e13
    assert 1e6 < found.rates.block_read_bytes < 1e12
    assert found.workers == 2
    assert found.stored_as == planned(config, 5000, 16).encoding.dtype


def test_nothing_is_left_but_the_rates(calibrated: tuple[Config, MachineRates]) -> None:
    config, _ = calibrated
    assert [entry.name for entry in config.private.iterdir()] == [MEASURED_RATES]
    assert {entry.name for entry in config.private.parent.iterdir()} == {
        "log",
        "private",
        "release.yaml",
    }


def test_a_million_records_on_64_workers_are_planned_without_data(
    calibrated: tuple[Config, MachineRates],
) -> None:
    config, _ = calibrated
    shown = preview(config, records=1_000_000, features=128, workers=64)
    found = json.loads(json.dumps(shown.to_json(), allow_nan=False))
    assert (found["n"], found["d"], found["ledger"]) == (1_000_000, 128, None)
    assert 0 < found["time"]["hours"] < 1e6
    stages = found["time"]["stages"]
    assert list(stages) == ["start", "perturb", "project", "publish"]
    assert found["time"]["hours"] == pytest.approx(sum(stages.values()) / 3600)
    blockwise = found["blockwise"]
    assert blockwise["passes"] == blockwise["products"] > 0
    # Triangle of int8 codes: what 64 workers can't hold is read again in every pass.
    assert 4.9e11 < blockwise["bytes_a_pass"] < 5.3e11
    assert blockwise["bytes_read"] > 10 * blockwise["bytes_a_pass"]
    text = shown.to_text()
    for part in (
        "passes over",
        "tasks",
        "hours)",
        "measured: rates on",
        "assumed: products, steps and columns are what solvers typically take",
        "assumed: 64 workers, each as fast as one of the 2 measured",
        "ledger: not asked",
    ):
        assert part in text


def test_without_rates_the_way_to_them_is_named(tmp_path: Path) -> None:
    shown = preview(load_config(configured(tmp_path)), records=5000, features=16)
    assert shown.to_json()["time"] is None
    assert "'scoreshield plan CONFIG --calibrate' measures them" in shown.to_text()
    assert "passes over" in shown.to_text()


def test_rates_of_another_machine_are_used_and_named(
    calibrated: tuple[Config, MachineRates],
) -> None:
    config, found = calibrated
    shown = preview(config, records=5000, features=16).workload
    elsewhere = replace(shown, measured=replace(found, host="elsewhere"))
    assert elsewhere.times == shown.times
    assert "host elsewhere, now " in "\n".join(elsewhere.to_lines())


def test_what_is_kept_elsewhere_than_was_measured_is_named(
    calibrated: tuple[Config, MachineRates],
) -> None:
    config, _ = calibrated
    elsewhere = config.model_copy(update={"blocks": config.private.parent / "blocks"})
    text = preview(elsewhere, records=5000, features=16).to_text()
    assert "assumed: blocks as fast to reach as the private folder" in text
    assert "to reach" not in preview(config, records=5000, features=16).to_text()


def test_the_sizes_are_options_of_the_command(calibrated: tuple[Config, MachineRates]) -> None:
    config, _ = calibrated
    file = str(config.private.parent / "release.yaml")
    options = ["--records", "4000", "--features", "32", "--workers", "3", "--json"]
    found = CliRunner().invoke(cli, ["plan", file, *options], catch_exceptions=False)
    shown = json.loads(found.output)
    assert (shown["n"], shown["d"]) == (4000, 32)
    assert any("3 workers" in words for words in shown["time"]["assumptions"])


def test_workers_alone_leave_the_ledger_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "faces.npy", np.random.default_rng(0).normal(size=(50, 4)))
    shown = preview(load_config(configured(tmp_path, gallery="faces.npy")), workers=7)
    assert shown.ledger is not None
    assert shown.workload.machines.workers == 7


@pytest.mark.parametrize(
    ("few", "many", "fixed", "rate"),
    [
        ((3.0, 10.0), (5.0, 30.0), 2.0, 10.0),
        # Noise that turns the line around, or lets it start below zero, is not believed.
        ((3.0, 10.0), (2.0, 30.0), 2.95, 200.0),
        ((1.0, 10.0), (5.0, 30.0), 0.05, 5.0),
    ],
)
def test_a_cost_is_split_by_a_straight_line(
    few: tuple[float, float], many: tuple[float, float], fixed: float, rate: float
) -> None:
    split = Split.of(few, many)
    assert split.fixed == pytest.approx(fixed)
    assert split.rate == pytest.approx(rate)


@pytest.mark.scale
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("method", ["shrink", "nearest"])
def test_the_forecast_of_twenty_thousand_records_is_right_within_a_half(
    tmp_path: Path, method: str
) -> None:
    random = np.random.default_rng(0)
    centres = random.normal(size=(64, 128))
    rows = centres[random.integers(64, size=20_000)] + 0.5 * random.normal(size=(20_000, 128))
    np.save(tmp_path / "faces.npy", rows.astype(np.float32))
    projection = {"method": method}
    config = load_config(configured(tmp_path, gallery="faces.npy", projection=projection))
    with (tmp_path / "log").open("w") as log:
        measure_rates(config, planned(config), JsonLines(log))
    times = preview(config).workload.times
    assert times is not None
    foretold = sum(stage.seconds for stage in times)
    timings = Timings()
    start = time.monotonic()
    release(config, timings)
    # Reading the source in comes before the release and is not foretold.
    taken = time.monotonic() - start - timings.seconds["ingest"]
    print(f"{method}: foretold {foretold:.1f} s, taken {taken:.1f} s")
    print({stage.name: round(stage.seconds, 1) for stage in times}, timings.seconds)
    assert taken / 1.5 <= foretold <= taken * 1.5
