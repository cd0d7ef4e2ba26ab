"""``scoreshield ledger`` on both databases, from a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.config.yaml import load_config
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.ingest import ingest
from pipeline.run.budget import ConfiguredLedger
from tests.harness.books import Books, request

Command = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path, url: str) -> Path:
    """A configuration whose ledger may make itself."""
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(20, 4)))
    ingest(tmp_path / "faces.npy", tmp_path / "faces.zarr")
    path = tmp_path / "release.yaml"
    path.write_text(
        "gallery: faces.zarr\n"
        "privacy: {epsilon: 1.0, delta: 1e-6, adjacency: record}\n"
        f"ledger: {{url: '{url}', epsilon: 20.0, delta: 1.0e-5, create: true}}\n"
    )
    return path


@pytest.fixture
def command(config: Path) -> Command:
    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["ledger", words[0], str(config), *words[1:]])

    return run


def test_init_show_verify(config: Path, command: Command) -> None:
    made = json.loads(command("init", "--json").stdout)
    ledger = ConfiguredLedger(load_config(config)).ledger
    for release_id in ("first", "second"):
        ledger.reserve(made["lineage"], release_id, request(2.0))
    shown = json.loads(command("show", "--json").stdout)
    first, second = (entry["cumulative_epsilon"] for entry in shown["releases"])
    assert first == pytest.approx(2.0, rel=1e-6)
    assert first < second == shown["spent"] < 4.0
    assert 16.0 < shown["largest"] < 20.0
    text = command("show").stdout
    assert "epsilon 2 at delta 1e-05, adjacency record; all up to here epsilon 2 at" in text
    assert f"{shown['largest']:.6g}" in text
    verified = command("verify")
    assert verified.exit_code == 0, verified.output
    assert verified.stdout.count("ok   ") == 5


def test_verify_exits_5_and_names_the_row(
    config: Path, command: Command, url: str, tmp_path: Path
) -> None:
    command("init")
    books = Books(url, tmp_path / "private")
    books.rewrite("UPDATE journal SET recorded_at = 'x' WHERE sequence = 1")
    result = command("verify")
    assert result.exit_code == 5
    assert "FAULT chain: row 1 (opened of lineage" in result.stdout
    found = json.loads(command("verify", "--json").stdout)
    assert found["ok"] is False
    assert [check["name"] for check in found["checks"] if not check["ok"]] == [
        "append-only",
        "chain",
    ]


def test_adopt(command: Command, url: str, tmp_path: Path) -> None:
    command("init")
    Books(url, tmp_path / "private").head_file.unlink()
    assert command("verify").exit_code == 5
    assert command("verify", "--adopt").exit_code == 0
    assert command("verify").exit_code == 0


def test_the_first_release_may_make_it_and_a_copy_is_recognised(
    config: Path, tmp_path: Path
) -> None:
    settings = load_config(config)
    gallery = open_gallery(settings.gallery)
    ledger = ConfiguredLedger(settings).opened(gallery, content_digest(gallery))
    assert ledger.name == ConfiguredLedger(settings).name
    again = ingest(tmp_path / "faces.npy", tmp_path / "again.zarr")
    assert ConfiguredLedger(settings).recognised(again).lineage == gallery.lineage
