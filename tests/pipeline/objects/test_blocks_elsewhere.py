"""Noisy blocks in a folder outside the private one: the same bits, one run, closed to others."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from pipeline.forecast.preview import preview
from pipeline.run.outcome import Outcome


def test_blocks_in_a_folder_of_their_own(curator: Any, reference: Outcome, tmp_path: Path) -> None:
    config = curator.load(blocks=str(tmp_path / "scratch-disk"))
    made = curator.repeatable(config)
    assert curator.contents(made.path) == curator.contents(reference.path)
    kept = tmp_path / "scratch-disk" / "gram-not-private"
    assert {path.name for path in kept.iterdir()} == {"claim", "noisy.zarr", "receipts"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert not list(config.private.rglob("noisy.zarr"))
    with pytest.raises(ConfigurationError, match="noisy blocks of another run"):
        curator.repeatable(curator.load("other", blocks=str(tmp_path / "scratch-disk")))


def test_the_plan_says_where_free_space_is_not_checked(curator: Any) -> None:
    shown = preview(curator.load(blocks="s3://vault/runs"))
    assert shown.unmeasured == ("s3://vault/runs",)
    assert "s3://vault/runs: an object store, whose free space isn't checked" in shown.to_text()
