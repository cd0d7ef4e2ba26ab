"""Rows that can't be normalised are all counted and the first are named; zero rows by choice."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import open_gallery
from pipeline.ingest import ingest
from pipeline.ingest import write as write_module
from scoreshield.arithmetic.fixedpoint import substitute_row, to_fixed
from scoreshield.errors import ParameterError


@pytest.fixture
def small_panels(monkeypatch):
    """Panels of four rows of three features, so that every count crosses panels."""
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 4 * 4 * 3)
    monkeypatch.setattr(write_module, "PANEL_BYTES", 1)


def saved(tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    return tmp_path / "a.npy"


NON_FINITE, ZEROS = "NaN or infinite values in", "only zeros in"
SEVEN = [2, 5, 11, 12, 30, 38, 39]


@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_every_non_finite_row_is_counted_and_the_first_five_named(tmp_path, refused, dtype, bad):
    values = np.ones((40, 3), dtype)
    values[SEVEN, 1] = bad
    message = refused(saved(tmp_path, values))
    assert f"{NON_FINITE} 7 rows (counted from 0: 2, 5, 11, 12, 30, ...) of 40" in message
    assert ZEROS not in message


@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize(
    ("changes", "zero_rows", "said", "unsaid"),
    [
        # one pass counts both kinds
        (
            {1: 0, 39: 0, 7: [1, 1, np.nan]},
            "refuse",
            [f"{NON_FINITE} 1 row (counted from 0: 7)", f"{ZEROS} 2 rows (counted from 0: 1, 39)"],
            [],
        ),
        ({1: 0}, "refuse", ["--zero-rows substitute"], [NON_FINITE]),
        # substitution does not hide the others
        ({1: 0, 7: [1, 1, np.nan]}, "substitute", [f"{NON_FINITE} 1 row"], [ZEROS]),
        ({2: [0, np.nan, 0]}, "refuse", [NON_FINITE], [ZEROS]),
        ({2: -0.0}, "refuse", [f"{ZEROS} 1 row (counted from 0: 2)"], [NON_FINITE]),
    ],
)
def test_rows_without_direction_are_counted_by_kind(
    tmp_path, refused, changes, zero_rows, said, unsaid
):
    values = np.ones((40, 3))
    for row, cells in changes.items():
        values[row] = cells
    message = refused(saved(tmp_path, values), zero_rows=zero_rows)
    assert all(part in message for part in said)
    assert not any(part in message for part in unsaid)


def test_zero_rows_of_integers(tmp_path, refused):
    values = np.ones((4, 3), np.int8)
    values[3] = 0
    assert f"{ZEROS} 1 row (counted from 0: 3)" in refused(saved(tmp_path, values))


@pytest.mark.parametrize(
    ("dtype", "tiny"), [("f2", 2.0**-24), ("f4", 2.0**-149), ("f8", 2.0**-1074)]
)
def test_subnormal_rows_are_directions(tmp_path, dtype, tiny):
    values = np.ones((3, 4), dtype)
    values[1] = [tiny, 0, 0, -tiny]
    gallery = ingest(saved(tmp_path, values), tmp_path / "gallery.zarr")
    expected = to_fixed(np.array([[1.0, 0.0, 0.0, -1.0]]))
    np.testing.assert_array_equal(read_rows(gallery.path, 1, 2), expected)


@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize("order", ["C", "F"])
def test_zero_rows_are_substituted_and_no_other_row_changes(tmp_path, order):
    values = np.random.default_rng(3).standard_normal((21, 3))
    empty = [0, 4, 5, 6, 7, 20]  # 4 to 7: a whole panel
    values[empty] = 0
    source = saved(tmp_path, np.asarray(values, order=order))
    gallery = ingest(source, tmp_path / "gallery.zarr", zero_rows="substitute")
    rows = read_rows(gallery.path, 0, 21)
    kept = np.setdiff1d(np.arange(21), empty)
    np.testing.assert_array_equal(rows[empty], np.tile(substitute_row(3), (6, 1)))
    np.testing.assert_array_equal(rows[kept], to_fixed(values[kept]))
    assert open_gallery(gallery.path) == gallery


def test_unknown_treatment_of_zero_rows(tmp_path):
    with pytest.raises(ParameterError, match="'refuse' or 'substitute'"):
        ingest(saved(tmp_path, np.ones((3, 2))), tmp_path / "g.zarr", zero_rows="drop")  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_panels")
def test_progress_counts_rows_up_to_n(tmp_path):
    seen: list[int] = []
    ingest(saved(tmp_path, np.ones((10, 3))), tmp_path / "gallery.zarr", progress=seen.append)
    assert seen == [4, 8, 10]
