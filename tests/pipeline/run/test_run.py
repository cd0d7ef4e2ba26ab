"""One run: its name follows from its settings, its folder is private, its settings stay."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.model import Config
from pipeline.errors import ConfigurationError, IntegrityFailure, RunFailed
from pipeline.gallery.store import Gallery
from pipeline.run.folder import RunFolder, first_difference
from pipeline.run.prepare import prepare_run, run_settings
from pipeline.run.room import disk_used, free_disk

GALLERY = Gallery(Path("somewhere"), 50, 8, "0" * 32)
SETTINGS: dict[str, Any] = {"n": 50, "privacy": {"epsilon": 1.0, "range": None}, "arrays": ["gram"]}


def config(**changes: Any) -> Config:
    return Config.model_validate(
        {
            "gallery": "faces.npy",
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"},
            "ledger": {"url": "sqlite:///ledger.db", "epsilon": 2.0, "delta": 1e-5},
            **changes,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "gram-a")


def test_the_same_settings_are_the_same_release() -> None:
    name = prepare_run(config(), GALLERY).release_id
    assert name == prepare_run(config(), GALLERY).release_id
    assert name.startswith("gram-")
    # Places and machines are not part of what a release is.
    for places in (
        {"output": "elsewhere"},
        {"block_side": 64},
        {"cluster": {"workers": 7}},
        {"arrays": ["gram", "factor"]},
    ):
        assert prepare_run(config(**places), GALLERY).release_id == name


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"epsilon": 1.5, "delta": 1e-6, "adjacency": "record"}},
        {"privacy": {"epsilon": 1.0, "delta": 1e-7, "adjacency": "record"}},
        {"privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "output", "radius": 1.0}},
        {
            "privacy": {
                "epsilon": 1.0,
                "delta": 1e-6,
                "adjacency": "record",
                "score_range": [0, 1],
            }
        },
        {"projection": {"method": "nearest"}},
        {"projection": {"tolerance": 1e-3}},
        {"arrays": ["gram"]},
    ],
)
def test_other_settings_are_another_release(changes: dict[str, Any]) -> None:
    name = prepare_run(config(), GALLERY).release_id
    assert prepare_run(config(**changes), GALLERY).release_id != name


def test_another_gallery_is_another_release() -> None:
    name = prepare_run(config(), GALLERY).release_id
    for other in (replace(GALLERY, lineage="1" * 32), replace(GALLERY, n=51)):
        assert prepare_run(config(), other).release_id != name


def test_a_release_may_be_named() -> None:
    run = prepare_run(config(release="faces-2026"), GALLERY)
    assert run.release_id == run.release.name == run.folder.path.name == "faces-2026"
    assert not run.published


def test_preparing_writes_nothing(tmp_path: Path) -> None:
    prepare_run(config(output=tmp_path / "out", private=tmp_path / "private"), GALLERY)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_private(folder: RunFolder) -> None:
    with folder.locked():
        for path in (folder.path, folder.receipts, folder.scratch):
            assert path.stat().st_mode & 0o777 == 0o700


def test_two_processes_never_drive_one_run(folder: RunFolder) -> None:
    other = (
        "import sys; from pathlib import Path; from pipeline.run.folder import RunFolder\n"
        f"with RunFolder(Path({str(folder.path)!r})).locked(): pass"
    )
    with folder.locked():
        refused = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
        assert refused.returncode == 1
        assert "another process is running this release" in refused.stderr
        with pytest.raises(RunFailed), folder.locked():
            pass
    with folder.locked():
        pass


def test_what_a_run_was_started_with_stays(folder: RunFolder) -> None:
    with folder.locked():
        assert folder.load_settings() is None
        folder.check_settings(SETTINGS)
        folder.record_start(SETTINGS, b"\1" * 32)
        folder.record_start({"n": 99}, b"\2" * 32)
    assert folder.load_settings() == SETTINGS
    assert folder.started_on(b"\1" * 32)
    assert not folder.started_on(b"\2" * 32)
    assert folder.record.stat().st_mode & 0o777 == 0o600
    folder.check_settings(SETTINGS)


def test_settings_survive_json(folder: RunFolder) -> None:
    settings = run_settings(config(), GALLERY)
    with folder.locked():
        folder.record_start(settings, bytes(32))
    folder.check_settings(settings)


def test_a_change_half_way_is_refused_by_name(folder: RunFolder) -> None:
    with folder.locked():
        folder.record_start(SETTINGS, bytes(32))
    changed = {**SETTINGS, "privacy": {"epsilon": 2.0, "range": None}}
    with pytest.raises(ConfigurationError, match=r"privacy\.epsilon = 1\.0, this .* says 2\.0"):
        folder.check_settings(changed)


@pytest.mark.parametrize("content", ["", "{", "[]", "5"])
def test_a_damaged_record_is_no_start(folder: RunFolder, content: str) -> None:
    with folder.locked():
        folder.record.write_text(content)
    with pytest.raises(IntegrityFailure, match=r"run record .* is damaged"):
        folder.load_settings()


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ({}, {}, None),
        (SETTINGS, json.loads(json.dumps(SETTINGS)), None),
        ({"a": 1}, {"a": 2}, ("a", 1, 2)),
        ({"a": 1}, {}, ("a", 1, None)),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, ("a", 1, 2)),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, ("a.b.c", 1, 2)),
        ({"a": {"b": 1}}, {"a": 5}, ("a", {"b": 1}, 5)),
    ],
)
def test_first_difference(before: Any, now: Any, difference: Any) -> None:
    assert first_difference(before, now) == difference


def test_noise_is_discarded_with_all_that_was_made_of_it(folder: RunFolder) -> None:
    with folder.locked():
        for path in (folder.store, folder.projection):
            path.mkdir()
        (folder.receipts / "0.json").write_text("{}")
        folder.key_file.write_text("key")
        assert folder.projection_done()
        assert disk_used(folder.path) == len("{}" + "key")
        folder.discard_noise()
        assert not folder.store.exists()
        assert not folder.receipts.exists()
        assert not folder.projection_done()
        assert folder.key_file.exists()


def test_free_disk_of_a_path_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert free_disk(tmp_path) > 0
    assert free_disk(tmp_path / "not" / "there") == pytest.approx(free_disk(tmp_path), rel=0.1)
