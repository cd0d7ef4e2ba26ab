"""Fixtures of every room: a curator's folder, and releases that many tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cluster import THREADS
from tests.harness.curator import Curator, Finished, finished_by


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
    return finished_by(made)
