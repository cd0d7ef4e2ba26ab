"""A source that is ingested anew keeps its lineage, and with it what its releases have spent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.errors import BudgetRefused
from pipeline.ledger import OverspendRefused
from tests.harness.curator import Curator, Finished


def test_a_copy_of_a_released_source_draws_on_the_same_budget(curator: Curator) -> None:
    first = curator.release(release="first", projection={"method": "none"}, arrays=["gram"])
    shutil.copy(curator.root / "source.npy", curator.root / "copy.npy")
    small = {**curator.settings["privacy"], "epsilon": 20.0}
    changes = {"gallery": "copy.npy", "projection": {"method": "none"}, "arrays": ["gram"]}
    with pytest.raises(OverspendRefused, match="has spent epsilon 50"):
        curator.release(release="second", **changes)
    second = curator.release(release="third", privacy=small, **changes)
    lineages = {outcome.manifest.composition.lineage for outcome in (first, second)}
    assert len(lineages) == 1
    entries = curator.account(**changes).entries
    assert [entry.release_id for entry in entries] == ["first", "third"]


def test_a_ledger_that_was_set_back_releases_nothing(finished: Finished, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished.curator.root, tmp_path / "copy"))
    curator = Curator(root, finished.curator.settings)
    older = (root / "ledger.db").read_bytes()
    small = {**curator.settings["privacy"], "epsilon": 1.0}
    changes = {"projection": {"method": "none"}, "arrays": ["gram"], "privacy": small}
    curator.release(release="newer", **changes)
    (root / "ledger.db").write_bytes(older)
    with pytest.raises(BudgetRefused, match="was set back"):
        curator.release(release="newest", **changes)
    run = curator.prepared(release="newest", **changes)
    assert not run.folder.key_file.exists()
    assert not run.folder.store.exists()
