"""One product equals the dense one, whatever happens to workers, caches and attempts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import Places, cut_shares
from pipeline.project.block_cache import BlockCache
from pipeline.project.operator import (
    ClusterOperator,
    NoisyBlocks,
    ShareJob,
    box_correction,
    multiply_share,
)
from pipeline.project.panel_store import ClusterPanels
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


@given(st.integers(1, 80), st.integers(1, 70))
def test_shares_hold_every_block_once(per_side: int, threads: int) -> None:
    shares = cut_shares(per_side, threads)
    blocks = [(i, j) for share in shares for i in share.rows for j in share.columns if i <= j]
    assert sorted(blocks) == [(i, j) for i in range(per_side) for j in range(i, per_side)]
    assert sum(share.work for share in shares) == per_side**2
    assert [share.index for share in shares] == list(range(len(shares)))


def test_work_is_even_and_stays_where_it_is() -> None:
    shares = cut_shares(40, 2)
    places = Places(shares)
    first = places.among({"a": 1, "b": 1})
    load = {
        worker: sum(share.work for share in shares if first[share.index] == worker)
        for worker in "ab"
    }
    assert load["a"] == load["b"]
    after = places.among({"b": 1, "c": 1})
    assert all(after[index] == "b" for index, worker in first.items() if worker == "b")
    assert {after[index] for index, worker in first.items() if worker == "a"} == {"c"}
    assert places.among({"b": 1, "c": 1}) == after


def test_a_thread_more_is_more_work() -> None:
    shares = cut_shares(40, 4)
    placed = Places(shares).among({"one": 1, "three": 3})
    work = sum(share.work for share in shares if placed[share.index] == "three")
    assert work == pytest.approx(0.75 * 40**2, rel=0.1)
