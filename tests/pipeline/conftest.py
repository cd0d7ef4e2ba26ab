"""A cluster, and small releases for the tests of those who read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from tests.harness.cluster import THREADS
from tests.harness.small_release import Made, make


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The cluster of two worker threads that tests without faults share."""
    with (
        THREADS.instead_of_processes(),
        open_cluster(Cluster(), tmp_path_factory.mktemp("scratch")) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Releases by method and arrays, each made once a session and not to be changed."""
    made: dict[tuple[str, tuple[str, ...]], Made] = {}

    def get(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Made:
        if (method, arrays) not in made:
            made[method, arrays] = make(tmp_path_factory.mktemp(method), method, arrays)
        return made[method, arrays]

    return get


@pytest.fixture
def release_copy(releases: Callable[..., Made], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a release that a test may damage."""

    def copy(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Path:
        return Path(shutil.copytree(releases(method, arrays).folder, tmp_path / "gram-test"))

    return copy
