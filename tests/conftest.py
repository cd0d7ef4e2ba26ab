"""Fixtures of every room: a curator's folder, and releases that many tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cluster import THREADS
from tests.harness.curator import TWO_WORKERS, Curator, Finished
from tests.harness.interruptions import KeyWatch


def pytest_sessionfinish() -> None:
    """End the cluster that tests of this process share."""
    THREADS.close()


@pytest.fixture
def curator(tmp_path: Path) -> Curator:
    """A fresh folder with a source of 300 records."""
    fresh = Curator(tmp_path)
    fresh.write_source()
    return fresh


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One command from .npy to release on two worker processes; not to be changed."""
    made = Curator(tmp_path_factory.mktemp("finished"))
    made.write_source()
    made.settings["cluster"] = TWO_WORKERS
    made.configure()
    with KeyWatch(made.root) as watch:
        done = made.process("release", "release.yaml", "--json")
    assert done.returncode == 0, done.stderr
    return Finished(made, watch.key, Path(done.json["path"]), done.stdout, done.stderr)
