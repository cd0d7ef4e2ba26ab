"""Panels on a cluster behave as arrays do, and leave nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import IntegrityFailure
from pipeline.plan.shares import RowRanges
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import ClusterPanels
from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.panels import (
    ArrayPanels,
    Term,
    concatenate,
    orthonormalise,
    select,
    start_pattern,
)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(1)


def panels_on_disk(algebra: ClusterPanels) -> int:
    return sum(entry.is_dir() for entry in algebra.folder.iterdir())


def test_the_start_depends_on_position_alone(
    algebra: ClusterPanels, load_panel: Callable[..., Any]
) -> None:
    expected = start_pattern(range(algebra.n), range(7, 12)).astype(np.float32)
    np.testing.assert_array_equal(load_panel(algebra.start(5, first=7)), expected)


def test_reductions_add_up_in_float64(
    algebra: ClusterPanels, store_panel: Callable[..., Any], random: np.random.Generator
) -> None:
    left = random.normal(size=(algebra.n, 5)).astype(np.float32)
    right = random.normal(size=(algebra.n, 3)).astype(np.float32)
    exact = left.T.astype(np.float64) @ right.astype(np.float64)
    A, B = store_panel(left), store_panel(right)
    np.testing.assert_allclose(algebra.inner(A, B), exact, rtol=1e-13, atol=1e-12)
    squares = np.einsum("ij,ij->i", left, left, dtype=np.float64)
    np.testing.assert_allclose(algebra.row_inner(A, A), squares, rtol=1e-14)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["number", "dense", "columns", "none"])
def test_combinations_are_those_of_arrays(
    algebra: ClusterPanels,
    store_panel: Callable[..., Any],
    load_panel: Callable[..., Any],
    random: np.random.Generator,
    scaled: bool,
    kind: str,
) -> None:
    values = random.normal(size=(algebra.n, 4))
    coefficients: Any = {
        "number": 0.75,
        "dense": random.normal(size=(4, 3)),
        "columns": np.eye(4)[:, [2, 0, 3]] * [2.0, -1.0, 0.5],
        "none": np.zeros((4, 3)),
    }[kind]
    scale = random.normal(size=algebra.n) if scaled else None
    other = random.normal(size=(algebra.n, 4 if kind == "number" else 3))
    home = ArrayPanels(algebra.n, np.float32)
    expected = home.combine(
        [Term(values.astype(np.float32), coefficients, scale), Term(other.astype(np.float32))]
    )
    found = algebra.combine(
        [Term(store_panel(values), coefficients, scale), Term(store_panel(other))]
    )
    assert found.shape == expected.shape
    np.testing.assert_allclose(load_panel(found), expected, rtol=1e-5, atol=1e-6)


def test_a_deferred_panel_reads_the_same_each_time(
    algebra: ClusterPanels, store_panel: Callable[..., Any], random: np.random.Generator
) -> None:
    values = random.normal(size=(algebra.n, 4)).astype(np.float32)
    panel = algebra.combine([Term(store_panel(values), random.normal(size=(4, 2)))])
    before = panels_on_disk(algebra)
    first = algebra.inner(panel, panel)
    assert panels_on_disk(algebra) == before
    second = algebra.inner(panel, panel)
    assert panels_on_disk(algebra) == before + 1
    np.testing.assert_array_equal(first, second)


def test_selecting_and_concatenating(
    algebra: ClusterPanels, store_panel: Callable[..., Any], load_panel: Callable[..., Any]
) -> None:
    values = start_pattern(range(algebra.n), range(6)).astype(np.float32)
    whole = store_panel(values)
    parts = [select(algebra, whole, slice(0, 2)), select(algebra, whole, slice(2, None))]
    np.testing.assert_array_equal(load_panel(parts[1]), values[:, 2:])
    np.testing.assert_array_equal(load_panel(concatenate(algebra, *parts)), values)
    nothing = select(algebra, whole, slice(0, 0))
    assert load_panel(nothing).shape == (algebra.n, 0)
    np.testing.assert_array_equal(load_panel(concatenate(algebra, nothing, whole)), values)
    assert algebra.inner(nothing, whole).shape == (0, 6)


def test_orthonormalising_drops_dependent_columns(
    algebra: ClusterPanels, store_panel: Callable[..., Any], random: np.random.Generator
) -> None:
    values = random.normal(size=(algebra.n, 5))
    values[:, 3] = values[:, 0] - values[:, 1]
    basis = orthonormalise(algebra, store_panel(values))
    assert basis.shape == (algebra.n, 4)
    np.testing.assert_allclose(algebra.inner(basis, basis), np.eye(4), atol=1e-6)


def test_panels_that_nothing_refers_to_are_removed(algebra: ClusterPanels) -> None:
    kept = algebra.start(2)
    for _ in range(5):
        algebra.start(3)
    gc.collect()
    algebra.start(1)
    # The last of the five may have been alive when the sixth was made.
    assert panels_on_disk(algebra) <= 3
    assert Path(algebra.stored(kept).path(0)).exists()


def test_no_panels_to_combine(algebra: ClusterPanels) -> None:
    with pytest.raises(ParameterError, match="at least one"):
        algebra.combine([])


@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_a_damaged_panel_is_refused(algebra: ClusterPanels, damage: str) -> None:
    panel = algebra.start(3)
    path = algebra.stored(panel).path(1)
    content = path.read_bytes()
    path.unlink() if damage == "removed" else path.write_bytes(content[:-4])
    with pytest.raises(IntegrityFailure, match=r"1\.f32"):
        algebra.inner(panel, panel)


@pytest.mark.parametrize(
    "rows", [slice(0, 10), slice(2, 3), slice(3, 9), slice(9, 10), slice(4, 4)]
)
def test_any_rows_of_a_file_can_be_read(tmp_path: Path, rows: slice) -> None:
    values = start_pattern(range(10), range(3)).astype(np.float32)
    file = PanelFile(tmp_path, RowRanges(10, 4), 3)
    for index in range(3):
        file.write(index, iter([values[file.ranges.span(index)]]))
    np.testing.assert_array_equal(file.read(rows), values[rows])
