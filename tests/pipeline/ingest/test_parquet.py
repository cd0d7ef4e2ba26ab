"""Parquet: columns of lists become galleries; what is not one list of numbers a row is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import ConfigurationError
from pipeline.ingest import libraries, open_source
from pipeline.ingest import write as write_module

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

VALUES = np.random.default_rng(5).standard_normal((50, 6))


def written(path, column, **options):
    pq.write_table(pa.table(column), path, **options)
    return path


def fixed(values):
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fixed_size_lists(tmp_path, holds, dtype):
    values = VALUES.astype(dtype)
    holds(written(tmp_path / "a.parquet", {"e": fixed(values)}, row_group_size=7), values)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.int16())])
def test_variable_lists_of_one_length(tmp_path, holds, kind):
    values = np.round(VALUES * 100)
    lists = pa.array(values.tolist(), pa.list_(pa.float64())).cast(kind)
    holds(written(tmp_path / "a.pq", {"e": lists}, row_group_size=7), values)


def test_fixed_shape_tensors(tmp_path, holds):
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES)
    holds(written(tmp_path / "a.parquet", {"e": tensors}), VALUES)


def test_panels_cross_row_groups(tmp_path, holds, monkeypatch):
    monkeypatch.setattr(write_module, "PANEL_BYTES", 8 * 6 * 11)
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 4 * 6 * 3)
    holds(written(tmp_path / "a.parquet", {"e": fixed(VALUES)}, row_group_size=7), VALUES)


def test_the_only_column_of_lists_needs_no_key(tmp_path, holds):
    table = {"name": [str(row) for row in range(50)], "e": fixed(VALUES), "size": np.arange(50)}
    source = written(tmp_path / "a.parquet", table)
    holds(source, VALUES)
    holds(source, VALUES, key="e")


def test_names_with_dots(tmp_path, holds):
    table = {"e.x": fixed(-VALUES), "e": fixed(VALUES), "f.g": fixed(2 * VALUES[:, ::-1])}
    source = written(tmp_path / "a.parquet", table)
    for key, values in (("e", VALUES), ("e.x", -VALUES), ("f.g", 2 * VALUES[:, ::-1])):
        holds(source, values, key=key)


def test_two_columns_of_lists_need_one(tmp_path, refused):
    source = written(tmp_path / "a.parquet", {"e": fixed(VALUES), "f": fixed(VALUES)})
    message = refused(source)
    assert "holds 2 arrays" in message
    assert "--column" in message
    assert "f (shape (50, 6), fixed_size_list<element: double>[6])" in message
    assert "no array 'g'" in refused(source, key="g")


def test_ragged_rows_are_counted_and_the_first_named(tmp_path, refused):
    lists = [[1.0, 2.0]] * 40
    for row in (3, 11, 30):
        lists[row] = [1.0]
    source = written(tmp_path / "a.parquet", {"e": pa.array(lists)}, row_group_size=8)
    message = refused(source)
    assert "another length in 3 rows (counted from 0: 3, 11, 30) of 40" in message
    assert "expected 2 numbers" in message


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_nulls_are_counted_whether_row_or_value(tmp_path, refused, kind):
    lists = [[1.0, 2.0]] * 20
    lists[4], lists[9], lists[15] = None, [None, 1.0], [None, None]
    source = written(tmp_path / "a.parquet", {"e": pa.array(lists, kind)}, row_group_size=8)
    assert "no value (null) in 3 rows (counted from 0: 4, 9, 15) of 20" in refused(source)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (np.arange(4.0), "1-D"),
        (["a", "b"], "text"),
        (pa.array([["a"], ["b"]]), "text"),
        (pa.array([[True], [False]]), "booleans"),
        (pa.array([[[1.0]], [[2.0]]]), "3-D"),
        (pa.array([[], []], pa.list_(pa.float32())), "0 features"),
        (pa.array([None, None], pa.list_(pa.float32())), "0 features"),
        (pa.array([[1.0]]), "1 rows"),
        (pa.array([{"x": 1.0}, {"x": 2.0}]), "Python objects"),
    ],
    ids=str,
)
def test_columns_that_hold_no_matrix(tmp_path, refused, column, found):
    assert found in refused(written(tmp_path / "a.parquet", {"e": column}))


def test_a_missing_library_says_how_to_install_it(tmp_path, monkeypatch):
    source = written(tmp_path / "a.parquet", {"e": fixed(VALUES)})

    def absent(module):
        raise ImportError(module)

    monkeypatch.setattr(libraries.importlib, "import_module", absent)
    with pytest.raises(ConfigurationError, match=r"pip install 'scoreshield\[parquet\]'"):
        open_source(source)
