"""A real cluster of two worker processes, and noisy matrices in a block store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import RowRanges
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import ClusterPanels
from tests.harness.small_release import write_noisy

N, SIDE, ROWS = 600, 96, 250
"""Seven blocks a side and three row ranges, whose bounds agree nowhere but at the ends."""


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with open_cluster(Cluster(), tmp_path_factory.mktemp("scratch")) as client:
        yield client


@pytest.fixture
def algebra(client: Client, tmp_path: Path) -> ClusterPanels:
    return ClusterPanels(client, tmp_path, RowRanges(N, ROWS), 2)


@pytest.fixture
def store_panel(algebra: ClusterPanels) -> Callable[..., Any]:
    """Puts an array into the home of panels, by way of its files."""

    def store(values: NDArray[Any]) -> Any:
        folder = algebra.new_folder()
        file = PanelFile(folder, algebra.ranges, values.shape[1])
        for index in range(algebra.ranges.count):
            file.write(index, iter([values[algebra.ranges.span(index)].astype(np.float32)]))
        return algebra.adopt(file)

    return store


@pytest.fixture
def load_panel(algebra: ClusterPanels) -> Callable[..., NDArray[np.float32]]:
    """Reads a whole panel."""
    return lambda panel: algebra.stored(panel).read(slice(0, algebra.n))


def clustered(n: int, sigma: float, seed: int = 3) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Clean cosines of unit vectors in clusters, and the same with mirrored noise."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(12, 16))
    rows = centres[random.integers(12, size=n)] + 0.4 * random.normal(size=(n, 16))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    clean = rows @ rows.T
    noise = np.triu(sigma * random.normal(size=(n, n)), 1)
    noisy = clean + noise + noise.T
    np.fill_diagonal(noisy, 1.0)
    return clean, noisy.astype(np.float32)


@pytest.fixture(scope="session")
def matrices() -> Callable[..., tuple[NDArray[Any], NDArray[np.float32]]]:
    return clustered


@pytest.fixture(scope="session")
def noisy_store(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Triangle, NDArray[np.float32]]:
    """Path and geometry of a store, and the matrix in it; its stored diagonal is not 1."""
    triangle = Triangle(N, SIDE)
    _, noisy = clustered(N, 0.5)
    stored = noisy.copy()
    np.fill_diagonal(stored, 0.5)
    path = tmp_path_factory.mktemp("noisy") / "noisy.zarr"
    return write_noisy(path, stored, triangle), triangle, noisy
