"""Where a release stands, from what is on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import BudgetRefused, InputRejected
from pipeline.gallery.open import content_digest
from pipeline.ingest.sources import prepare_gallery
from pipeline.progress import Tee
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.prepare import prepare_run, run_settings
from pipeline.run.run import Run
from pipeline.run.status import account_of, release_status
from pipeline.storage.blocks import Receipt, save_receipt


def configure(folder: Path, **changes: Any) -> Config:
    path = folder / "release.yaml"
    settings = {
        "gallery": "faces.npy",
        "block_side": 16,
        "privacy": {"epsilon": 4.0, "delta": 1e-6, "adjacency": "record"},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 6.0, "delta": 1e-6, "create": True},
    }
    path.write_text(yaml.safe_dump({**settings, **changes}))
    return load_config(path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(50, 4)))
    return configure(tmp_path)


def started(config: Config) -> Run:
    """A run up to the moment before its first block."""
    gallery = prepare_gallery(config, Tee())
    run = prepare_run(config, gallery)
    digest = content_digest(gallery)
    ledger = ConfiguredLedger(config).opened(gallery, digest)
    with run.folder.locked():
        ledger.reserve(gallery.lineage, run.release_id, request_for(run.mechanism))
        run.folder.record_start(run_settings(config, gallery), digest)
    return run


def test_nothing_has_started(config: Config, tmp_path: Path) -> None:
    found = release_status(config)
    assert (found.release_id, found.stage, found.account) == (None, "not started", None)
    assert "no ledger yet" in found.to_text()
    assert not (tmp_path / "private").exists()
    with pytest.raises(BudgetRefused, match="nothing is recorded for this gallery yet"):
        account_of(config)


def test_a_missing_source_is_no_release_that_has_not_started(tmp_path: Path) -> None:
    with pytest.raises(InputRejected, match=r"faces\.npy"):
        release_status(configure(tmp_path))


def test_each_stage_is_told(config: Config) -> None:
    run = started(config)
    assert release_status(config).stage == "perturb"
    for index in range(3):
        save_receipt(run.folder.receipts, Receipt(index, "0" * 64))
    found = release_status(config)
    assert (found.stage, found.blocks_done, found.blocks) == ("perturb", 3, 10)
    assert "noisy blocks: 3 of 10" in found.to_text()
    for index in range(10):
        save_receipt(run.folder.receipts, Receipt(index, "0" * 64))
    assert release_status(config).stage == "project"
    run.folder.projection.mkdir()
    assert release_status(config).stage == "publish"
    run.release.mkdir(parents=True)
    (run.release / "manifest.json").write_text("{}")
    assert release_status(config).stage == "released"


def test_without_projection_publishing_follows_the_last_block(tmp_path: Path) -> None:
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(10, 4)))
    config = configure(tmp_path, projection={"method": "none"}, arrays=["gram"])
    run = started(config)
    save_receipt(run.folder.receipts, Receipt(0, "0" * 64))
    assert release_status(config).stage == "publish"


def test_the_account_is_part_of_it_for_people_and_machines(config: Config) -> None:
    run = started(config)
    found = release_status(config)
    shown = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert shown["release_id"] == run.release_id
    (entry,) = shown["ledger"]["releases"]
    assert (entry["release_id"], entry["state"]) == (run.release_id, "reserved")
    assert shown["ledger"]["spent"] == pytest.approx(4.0, rel=1e-6)
    assert f"{run.release_id}: reserved, epsilon 4 at delta 1e-06" in found.to_text()
    assert account_of(config) == found.account


def test_a_release_that_was_given_up_is_called_so(config: Config) -> None:
    run = started(config)
    ledger = ConfiguredLedger(config).opened(run.gallery, content_digest(run.gallery))
    ledger.abandon(run.gallery.lineage, run.release_id)
    assert release_status(config).stage == "abandoned"
