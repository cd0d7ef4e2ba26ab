"""When a ledger may be made, and what bars it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import BudgetRefused
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.store import Gallery
from pipeline.ingest import ingest
from pipeline.ledger import Budget, Ledger, OverspendRefused
from pipeline.run.budget import ConfiguredLedger, request_for
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import Adjacency

MECHANISM = calibrate_gram(20, 4, 1.0, 1e-6)


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(20, 4)))
    return ingest(tmp_path / "faces.npy", tmp_path / "faces.zarr")


def configure(folder: Path, create: bool = True, epsilon: float = 2.0) -> Config:
    path = folder / "release.yaml"
    path.write_text(
        "gallery: faces.zarr\n"
        "privacy: {epsilon: 1.0, delta: 1e-6, adjacency: record}\n"
        "ledger: {url: 'sqlite:///books/ledger.db', "
        f"epsilon: {epsilon}, delta: 1e-5, create: {str(create).lower()}}}\n"
    )
    return load_config(path)


def ledger_file(config: Config) -> Path:
    return Path(config.ledger.url.removeprefix("sqlite:///"))


def write_record(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_request_is_what_the_mechanism_really_spends() -> None:
    mechanism = calibrate_gram(20, 4, 1.0, 1e-6, Adjacency("output", 1.5))
    request = request_for(mechanism)
    assert (request.epsilon, request.delta) == (1.0, 1e-6)
    assert request.sensitivity == mechanism.guarantee.sensitivity.value
    assert request.sigma == mechanism.sigma
    assert request.adjacency == "output (radius 1.5)"


def test_without_leave_there_is_no_ledger(tmp_path: Path, gallery: Gallery) -> None:
    config = configure(tmp_path, create=False)
    with pytest.raises(BudgetRefused, match=r"found no ledger.*ledger init CONFIG.*create: true"):
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    assert not ConfiguredLedger(config).exists
    assert not ledger_file(config).parent.exists()
    assert ConfiguredLedger(config).account(gallery.lineage) is None


def test_the_first_release_may_make_it(tmp_path: Path, gallery: Gallery) -> None:
    config = configure(tmp_path)
    ledger = ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    assert ledger_file(config).stat().st_mode & 0o777 == 0o600
    assert ledger.account(gallery.lineage).budget == ConfiguredLedger(config).budget
    assert ConfiguredLedger(config).account(gallery.lineage) == ledger.account(gallery.lineage)
    ConfiguredLedger(configure(tmp_path, create=False)).opened(gallery, content_digest(gallery))


def test_an_account_for_another_gallery_needs_leave_as_well(
    tmp_path: Path, gallery: Gallery
) -> None:
    ConfiguredLedger(configure(tmp_path)).opened(gallery, content_digest(gallery))
    np.save(tmp_path / "other.npy", np.random.default_rng(2).normal(size=(20, 4)))
    other = ingest(tmp_path / "other.npy", tmp_path / "other.zarr")
    with pytest.raises(BudgetRefused, match="found no account for this gallery"):
        ConfiguredLedger(configure(tmp_path, create=False)).opened(other, content_digest(other))
    assert ConfiguredLedger(configure(tmp_path)).account(other.lineage) is None
    ConfiguredLedger(configure(tmp_path)).opened(other, content_digest(other))


def test_a_budget_does_not_grow_with_the_configuration(tmp_path: Path, gallery: Gallery) -> None:
    ConfiguredLedger(configure(tmp_path)).opened(gallery, content_digest(gallery))
    with pytest.raises(BudgetRefused, match="opened with a budget of"):
        ConfiguredLedger(configure(tmp_path, epsilon=9.0)).opened(gallery, content_digest(gallery))


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("releases/a/manifest.json", {"composition": {"lineage": "LINEAGE"}}),
        ("private/runs/a/run.json", {"lineage": "LINEAGE"}),
        # What can't be read may have been a release of this gallery.
        ("releases/a/manifest.json", "{"),
        ("private/runs/a/run.json", ""),
        ("releases/a/manifest.json", "[" * 10**5),
        ("releases/a/manifest.json", " " * (16 * 2**20 + 1)),
    ],
)
def test_earlier_releases_and_runs_bar_a_new_ledger(
    tmp_path: Path, gallery: Gallery, place: str, content: Any
) -> None:
    config = configure(tmp_path)
    text = json.dumps(content).replace("LINEAGE", gallery.lineage)
    write_record(tmp_path / place, content if isinstance(content, str) else text)
    assert ConfiguredLedger(config).earlier_traces(gallery.lineage) == [(tmp_path / place).parent]
    with pytest.raises(
        BudgetRefused, match=r"an earlier release or run is there.*Restore the ledger"
    ):
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    assert not ConfiguredLedger(config).exists
    # The curator answers for it with an explicit command.
    assert ConfiguredLedger(config).initialised(gallery).spent_epsilon == 0
    ConfiguredLedger(config).opened(gallery, content_digest(gallery))


@pytest.mark.parametrize(
    "content",
    [
        {"private": True, "composition": {"lineage": "0" * 32}},
        {"private": True, "composition": None},
        {"composition": []},
        {"composition": "x"},
        [],
        {},
    ],
)
def test_a_release_that_no_ledger_accounts_for_bars_a_new_one(
    tmp_path: Path, gallery: Gallery, content: Any
) -> None:
    """With its private folder a gallery loses its lineage: the release may have been of it."""
    config = configure(tmp_path)
    write_record(tmp_path / "releases" / "a" / "manifest.json", content)
    with pytest.raises(BudgetRefused, match="an earlier release or run is there"):
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    assert not ConfiguredLedger(config).exists


def test_accounted_releases_and_those_of_test_mode_do_not_bar_it(
    tmp_path: Path, gallery: Gallery
) -> None:
    config = configure(tmp_path)
    other = "0" * 32
    (tmp_path / "books").mkdir()
    Ledger.create(config.ledger.url, config.private).open_account(other, Budget(1, 1e-6), b"other")
    accounted = {"private": True, "composition": {"lineage": other}}
    write_record(tmp_path / "releases" / "a" / "manifest.json", accounted)
    write_record(
        tmp_path / "releases" / "b-not-private" / "manifest.json",
        {"private": False, "composition": None},
    )
    write_record(tmp_path / "private" / "runs" / "b" / "run.json", {"lineage": other})
    assert ConfiguredLedger(config).earlier_traces(gallery.lineage) == []
    ConfiguredLedger(config).opened(gallery, content_digest(gallery))


class TestTheSameContentIngestedAnew:
    """It keeps the lineage under which the ledger knows it."""

    def test_it_is_recognised_for_good(self, tmp_path: Path, gallery: Gallery) -> None:
        config = configure(tmp_path)
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
        again = ingest(tmp_path / "faces.npy", tmp_path / "again.zarr")
        assert again.lineage != gallery.lineage
        known = ConfiguredLedger(config).recognised(again)
        assert known == replace(again, lineage=gallery.lineage)
        assert open_gallery(again.path) == known
        ledger = ConfiguredLedger(config).opened(known, content_digest(known))
        assert ledger.lineages() == (gallery.lineage,)

    def test_other_content_and_a_known_lineage_stay_as_they_are(
        self, tmp_path: Path, gallery: Gallery
    ) -> None:
        config = configure(tmp_path)
        assert ConfiguredLedger(config).recognised(gallery) == gallery
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
        assert ConfiguredLedger(config).recognised(gallery) == gallery
        np.save(tmp_path / "other.npy", np.random.default_rng(2).normal(size=(20, 4)))
        other = ingest(tmp_path / "other.npy", tmp_path / "other.zarr")
        assert ConfiguredLedger(config).recognised(other) == other
        assert open_gallery(other.path) == other

    def test_a_lineage_that_the_configuration_names_is_never_replaced(
        self, tmp_path: Path, gallery: Gallery
    ) -> None:
        config = configure(tmp_path)
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
        again = ingest(tmp_path / "faces.npy", tmp_path / "again.zarr", lineage="1" * 32)
        named = config.model_copy(update={"lineage": "1" * 32})
        with pytest.raises(BudgetRefused, match=f"as lineage {gallery.lineage}.*says 1111"):
            ConfiguredLedger(named).recognised(again)
        with pytest.raises(BudgetRefused, match=f"held under lineage {gallery.lineage}"):
            ConfiguredLedger(named).opened(again, content_digest(again))
        assert open_gallery(again.path).lineage == "1" * 32

    def test_a_lineage_with_releases_is_never_replaced(
        self, tmp_path: Path, gallery: Gallery
    ) -> None:
        """Their spends are in another ledger or in none; taking the other lineage hides them."""
        config = configure(tmp_path)
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))
        again = ingest(tmp_path / "faces.npy", tmp_path / "again.zarr")
        write_record(tmp_path / "private" / "runs" / "a" / "run.json", {"lineage": again.lineage})
        with pytest.raises(BudgetRefused, match=r"runs/a\).*one content has one budget"):
            ConfiguredLedger(config).recognised(again)
        assert open_gallery(again.path) == again


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, gallery: Gallery) -> None:
    config = configure(tmp_path)
    write_record(ledger_file(config), "not a database, and longer than a header of SQLite")
    with pytest.raises(BudgetRefused):
        ConfiguredLedger(config).opened(gallery, content_digest(gallery))


def test_what_the_ledger_would_refuse_is_refused_before_and_nothing_is_written(
    tmp_path: Path, gallery: Gallery
) -> None:
    request = request_for(MECHANISM)
    small = configure(tmp_path, epsilon=0.5)
    with pytest.raises(OverspendRefused):
        ConfiguredLedger(small).check_affordable(gallery, "first", request)
    assert not ConfiguredLedger(small).exists
    with pytest.raises(BudgetRefused, match="found no ledger"):
        ConfiguredLedger(configure(tmp_path, create=False)).check_affordable(
            gallery, "first", request
        )

    config = configure(tmp_path, epsilon=1.2)
    ConfiguredLedger(config).check_affordable(gallery, "first", request)
    ledger = ConfiguredLedger(config).opened(gallery, content_digest(gallery))
    ledger.reserve(gallery.lineage, "first", request)
    ConfiguredLedger(config).check_affordable(gallery, "first", request)
    with pytest.raises(OverspendRefused):
        ConfiguredLedger(config).check_affordable(gallery, "second", request)
    ledger.abandon(gallery.lineage, "first")
    with pytest.raises(BudgetRefused, match="was abandoned"):
        ConfiguredLedger(config).check_affordable(gallery, "first", request)
