"""What ``plan`` shows: every promised figure, plain words where no signal survives, the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.forecast.preview import preview
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.ingest.sources import prepare_gallery
from pipeline.ledger import Ledger
from pipeline.progress import JsonLines
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.gram import gram_mechanism
from pipeline.run.prepare import prepare_run

N, D = 400, 6
SETTINGS: dict[str, Any] = {
    "gallery": "faces.npy",
    "privacy": {"epsilon": 4.0, "delta": 1e-6, "adjacency": "output", "radius": 1.0},
    "projection": {"method": "nearest"},
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 6.0, "delta": 1e-6, "create": True},
}
RECORD = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(N, D)))
    return tmp_path


def configure(folder: Path, **changes: Any) -> Config:
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, **changes}))
    return load_config(path)


def reserved(config: Config, folder: Path) -> tuple[Ledger, str, str]:
    """The configuration's release, reserved as a run would."""
    with (folder / "log").open("w") as log:
        gallery = prepare_gallery(config, JsonLines(log))
    run = prepare_run(config, gallery)
    ledger = ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    ledger.reserve(gallery.lineage, run.release_id, request_for(run.mechanism))
    return ledger, gallery.lineage, run.release_id


def test_every_figure_is_there_for_a_machine(folder: Path) -> None:
    config = configure(folder)
    shown = json.loads(json.dumps(preview(config).to_json(), allow_nan=False))
    mechanism = gram_mechanism(config, N, D)
    assert (shown["n"], shown["d"], shown["sigma"]) == (N, D, mechanism.sigma)
    guarantee = shown["guarantee"]
    assert guarantee["sensitivity"]["value"] == pytest.approx(1 / np.sqrt(2))
    assert "tau" in guarantee["sensitivity"]["derivation"]
    assert shown["implied_record_replacement"]["epsilon"] > guarantee["epsilon"] == 4.0
    assert shown["forecast"]["noise_edge"] == pytest.approx(2 * mechanism.sigma * np.sqrt(N))
    assert shown["forecast"]["recoverable_share"] == pytest.approx(mechanism.sigma / np.sqrt(N))
    assert shown["forecast"]["carries_signal"] is True
    assert shown["forecast"]["advice"] is None
    assert (shown["blocks"], shown["tasks"]) == (1, 1 + 1 + 1 + 1)
    assert (shown["noisy"]["dtype"], shown["noisy"]["step"] > 0) == ("int8", True)
    assert 0 < shown["noisy"]["added_variance"] < 1 / 1728
    assert shown["disk_bytes"] == sum(stage["disk_bytes"] for stage in shown["stages"])
    assert shown["peak_worker_bytes"] == max(s["peak_worker_bytes"] for s in shown["stages"])
    ledger = shown["ledger"]
    assert {"spent", "requested", "remaining", "largest"} <= ledger.keys()
    assert (ledger["found"], ledger["fits"], ledger["state"], ledger["spent"]) == (
        False,
        True,
        None,
        0,
    )
    assert ledger["after"] == pytest.approx(4.0, rel=1e-6)


def test_every_figure_is_there_for_a_person(folder: Path) -> None:
    text = preview(configure(folder)).to_text()
    for part in (
        f"gram of {N} records of {D} features",
        "epsilon 4 at delta 1e-06, adjacency output (radius 1.0)",
        "sensitivity: 0.707107; tau/sqrt(2)",
        "noise: sigma 0.8",
        "for the full replacement of one record this gives only epsilon",
        "noise edge 2*sigma*sqrt(n)",
        "of the trace (sigma/sqrt(n))",
        "1 blocks of 1024 x 1024, 4 tasks",
        "on disk, at most",
        "kept as int8 codes from -127 to 127",
        "ledger (no ledger yet): fits, 4 will be spent after it; spent 0, requested 4, remaining 6",
        "the largest epsilon that still fits is 6",
    ):
        assert part in text
    assert "WARNING" not in text


def test_planning_changes_nothing(folder: Path) -> None:
    config = configure(folder)
    preview(config)
    assert sorted(entry.name for entry in folder.iterdir()) == ["faces.npy", "release.yaml"]


def test_a_release_without_signal_is_called_that_and_the_way_out_works(folder: Path) -> None:
    shown = preview(configure(folder, privacy=RECORD))
    advice = shown.plan.forecast.advice(shown.plan.mechanism)
    assert advice is not None
    assert "would carry no recoverable signal" in advice
    assert "score_range: [0, 1]" in advice
    assert f"WARNING: {advice}" in shown.to_text()
    assert shown.to_json()["forecast"]["advice"] == advice
    forecast = shown.plan.forecast
    # What is advised is planned, and does carry signal; a little less does not.
    enough = {**RECORD, "epsilon": forecast.epsilon_for_signal * 1.01}
    assert preview(configure(folder, privacy=enough)).plan.forecast.carries_signal
    less = {**RECORD, "epsilon": forecast.epsilon_for_signal * 0.97}
    assert not preview(configure(folder, privacy=less)).plan.forecast.carries_signal
    radius = forecast.shift_radius_for_signal
    shift = {**RECORD, "adjacency": "shift", "radius": radius * 0.98}
    assert preview(configure(folder, privacy=shift)).plan.forecast.carries_signal


def test_an_overspend_is_foretold_with_its_four_numbers(folder: Path) -> None:
    reserved(configure(folder), folder)
    greedy = {**SETTINGS["privacy"], "epsilon": 5.0}
    shown = preview(configure(folder, privacy=greedy))
    ledger = shown.to_json()["ledger"]
    assert (ledger["fits"], ledger["requested"]) == (False, 5.0)
    assert ledger["spent"] == pytest.approx(4.0, rel=1e-6)
    assert ledger["remaining"] == pytest.approx(2.0, rel=1e-6)
    assert 2.0 < ledger["largest"] < 5.0
    assert (
        "REFUSES this release, it does not fit the budget (spent 4, requested 5" in shown.to_text()
    )
    fitting = {**SETTINGS["privacy"], "epsilon": ledger["largest"]}
    assert preview(configure(folder, privacy=fitting)).ledger.refusal is None


def test_a_release_in_the_ledger_spends_nothing_more(folder: Path) -> None:
    config = configure(folder)
    ledger, lineage, release_id = reserved(config, folder)
    for state, settle in (("reserved", None), ("committed", ledger.commit)):
        if settle is not None:
            settle(lineage, release_id)
        shown = preview(config)
        assert (shown.ledger.state, shown.ledger.refusal) == (state, None)
        assert (
            shown.ledger.after_epsilon
            == shown.ledger.spend.spent_epsilon
            == pytest.approx(4.0, rel=1e-6)
        )
        assert f"this release is {state}, running it spends nothing more" in shown.to_text()


def test_an_abandoned_release_is_refused(folder: Path) -> None:
    config = configure(folder)
    ledger, lineage, release_id = reserved(config, folder)
    ledger.abandon(lineage, release_id)
    assert preview(config).to_json()["ledger"]["fits"] is False
    assert "REFUSES this release, it was abandoned" in preview(config).to_text()


def test_what_the_ledger_would_refuse_is_foretold(folder: Path) -> None:
    closed = {**SETTINGS["ledger"], "create": False}
    assert "found no ledger" in str(preview(configure(folder, ledger=closed)).ledger.refusal)
    reserved(configure(folder), folder)
    other = preview(configure(folder, privacy={**RECORD, "epsilon": 0.1}))
    assert "under adjacency output" in str(other.ledger.refusal)
    grown = preview(
        configure(
            folder,
            privacy={**SETTINGS["privacy"], "epsilon": 1.0},
            ledger={**SETTINGS["ledger"], "epsilon": 60.0},
        )
    )
    assert "opened with a budget of epsilon 6.0" in str(grown.ledger.refusal)


def test_it_says_that_ids_are_published(folder: Path) -> None:
    np.savez(folder / "faces.npz", e=np.load(folder / "faces.npy"), names=np.arange(N))
    changes = {"gallery": "faces.npz", "key": "e"}
    named = preview(configure(folder, **changes, public_ids="names"))
    assert named.to_json()["publishes_ids"] is True
    assert "published as they are" in named.to_text()
    ingest(folder / "faces.npz", folder / "made.zarr", key="e", public_ids="names")
    assert preview(configure(folder, gallery="made.zarr")).publishes_ids
    assert not preview(configure(folder, **changes)).publishes_ids
