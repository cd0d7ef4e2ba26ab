"""One product equals the dense one, whatever happens to workers, caches and attempts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import plan_release
from pipeline.plan.release import WORKER_BASELINE
from pipeline.plan.shares import cut_shares, row_ranges
from pipeline.project.block_cache import BlockCache
from pipeline.project.operator import (
    ClusterOperator,
    NoisyBlocks,
    ShareJob,
    box_correction,
    multiply_share,
)
from pipeline.project.panel_store import ClusterPanels
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import choose_encoding
from scoreshield.projection.blockwise.box_correction import BoxCorrection
from tests.harness.small_release import write_noisy

Store = tuple[Path, Triangle, Any]


def test_a_product_is_that_of_the_dense_matrix_with_unit_diagonal(
    algebra: ClusterPanels, noisy_store: Store, load_panel: Callable[..., Any]
) -> None:
    path, triangle, noisy = noisy_store
    operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, 0), triangle)
    W = algebra.start(9)
    found = load_panel(operator.matmat(W))
    expected = noisy.astype(np.float64) @ load_panel(W)
    assert operator.n == len(noisy)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_codes_multiply_as_the_numbers_they_stand_for(
    algebra: ClusterPanels,
    noisy_store: Store,
    load_panel: Callable[..., Any],
    tmp_path: Path,
    precision: Any,
) -> None:
    _, triangle, noisy = noisy_store
    encoding = choose_encoding(0.5, precision)
    path = write_noisy(tmp_path / "codes.zarr", noisy, triangle, encoding)
    operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, 2**30), triangle)
    W = algebra.start(9)
    rounded = encoding.decode(encoding.encode(noisy)).astype(np.float64)
    np.fill_diagonal(rounded, 1.0)
    expected = rounded @ load_panel(W)
    for _ in range(2):
        found = load_panel(operator.matmat(W))
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    # The second product read none: what is held are codes.
    stored = sum(
        np.prod([s.stop - s.start for s in triangle.region(t)]) for t in range(triangle.count)
    )
    assert operator.bytes_read == stored * encoding.bytes


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_the_box_correction_is_the_one_in_memory(
    algebra: ClusterPanels,
    store_panel: Callable[..., Any],
    load_panel: Callable[..., Any],
    scale: float,
) -> None:
    """Few entries are outside the box at the smaller scale and most at the larger one."""
    triangle = Triangle(algebra.n, 64)
    factor = (scale * np.random.default_rng(2).standard_normal((algebra.n, 5))).astype(np.float32)
    operator = box_correction(algebra, triangle, store_panel(factor))
    W = algebra.start(4)
    found = load_panel(operator.matmat(W))
    expected = BoxCorrection(factor.astype(np.float64)).matmat(load_panel(W).astype(np.float64))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert operator.bytes_read == 0


def test_a_second_product_reads_no_disk(algebra: ClusterPanels, noisy_store: Store) -> None:
    path, triangle, _ = noisy_store
    # Another limit is another source, whose blocks the workers may hold already.
    own = path.with_name("second.zarr")
    os.symlink(path, own)
    operator = ClusterOperator(algebra, NoisyBlocks(own, triangle, 2**30), triangle)
    whole = triangle.count * 4 * triangle.side**2
    operator.matmat(algebra.start(2))
    assert operator.bytes_read == pytest.approx(whole, rel=0.2)
    for _ in range(2):
        before = operator.bytes_read
        operator.matmat(algebra.start(2))
    assert operator.bytes_read == before


def test_a_repeated_or_half_written_share_changes_nothing(
    algebra: ClusterPanels, noisy_store: Store, tmp_path: Path
) -> None:
    path, triangle, _ = noisy_store
    folder = tmp_path / "partials"
    folder.mkdir()
    shares = cut_shares(triangle.per_side, 2)
    panel = algebra.stored(algebra.start(3))
    job = ShareJob(NoisyBlocks(path, triangle, 0), triangle, panel, folder)
    multiply_share((job, shares[1]), 0)
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / "1-0.f32").write_bytes(b"half")
    multiply_share((job, shares[1]), 0)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first


def test_what_does_not_fit_the_cache_is_read_each_time() -> None:
    cache, reads = BlockCache(), []

    def read(index: int) -> Any:
        reads.append(index)
        return np.zeros(25, dtype=np.float32)

    for _ in range(3):
        for index in range(4):
            _, count = cache.get(Path("store"), index, 250, lambda index=index: read(index))
            assert count in (0, 100)
        assert cache.bytes == 200
    assert reads == [0, 1, 2, 3, 2, 3, 2, 3]
    cache.get(Path("another store"), 0, 250, lambda: read(9))
    assert (cache.bytes, reads[-1]) == (100, 9)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_workers_stay_within_the_plan(client: Client, tmp_path: Path) -> None:
    # Defined here, so that it travels by value: workers can't import the tests.
    def resident_peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    n, side = 2500, 512
    triangle = Triangle(n, side)
    random = np.random.default_rng(5)
    noisy = random.normal(size=(n, n)).astype(np.float32)
    path = write_noisy(tmp_path / "noisy.zarr", noisy, triangle)
    mechanism = calibrate_gram(n, 128, 8.0, 1e-6)
    plan = plan_release(mechanism, "nearest", ("factor",), side, 1, workers=2, form="blockwise")
    assert plan.blockwise is not None
    algebra = ClusterPanels(client, tmp_path, row_ranges(n, 2), 2)
    held = 4 * 2**20
    planned = next(stage.peak_worker_bytes for stage in plan.stages if stage.name == "project")
    operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, held), triangle)
    client.restart()
    product = operator.matmat(algebra.start(plan.blockwise.width))
    algebra.inner(product, product)
    peaks = client.run(resident_peak).values()
    assert max(peaks) <= planned + held
    assert planned > WORKER_BASELINE
