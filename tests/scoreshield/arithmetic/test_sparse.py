"""Sparse rows: the integers, the products and the noisy bits of the same rows written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import substitute_row, to_fixed, to_integers
from scoreshield.arithmetic.sparse import (
    SparseRows,
    check_fixed_sparse,
    dense_by_sparse_products,
    sparse_products,
    substitute_integer,
    to_fixed_sparse,
)
from scoreshield.errors import InputRejected
from scoreshield.mechanisms.gaussian import noisy_block
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores
from scoreshield.privacy.sensitivity import ScoreRange

KEY = bytes(range(32))


def ratings(n: int, d: int, share: float, seed: int) -> NDArray[np.float64]:
    """Rows of ratings; with a small share some rows are empty."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(n, d)) * 10.0 ** random.integers(-30, 30, size=(n, 1))
    return np.where(random.random((n, d)) < share, values, 0.0)


def sparse_of(values: NDArray[np.float64]) -> SparseRows:
    stored = scipy.sparse.csr_array(values)
    pointers = stored.indptr.astype(np.int64)
    integers = to_fixed_sparse(pointers, stored.data, values.shape[1])
    kept = integers != 0
    pointers = np.concatenate([[0], np.cumsum(kept)])[pointers]
    return SparseRows(
        pointers, stored.indices.astype(np.int32)[kept], integers[kept], values.shape[1]
    )


def dense_of(values: NDArray[np.float64]) -> NDArray[np.float32]:
    rows = np.tile(substitute_row(values.shape[1]), (len(values), 1))
    filled = values.any(axis=1)
    rows[filled] = to_fixed(values[filled])
    return rows


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 12),
    d=st.integers(1, 70),
    share=st.sampled_from([0.02, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_rows_are_the_integers_of_the_dense_rows(n: int, d: int, share: float, seed: int) -> None:
    values = ratings(n, d, share, seed)
    rows = sparse_of(values)
    check_fixed_sparse(rows)
    assert (rows.dense() == dense_of(values)).all()


def test_products_are_exact_integers_with_substitutes_among_the_rows() -> None:
    values = ratings(40, 60, 0.03, 3)
    left, right = values[:25], values[15:]
    assert not left.any(axis=1).all()
    assert not right.any(axis=1).all()
    expected = dense_of(left).astype(object) * 2**24 @ (dense_of(right).astype(object) * 2**24).T
    assert (sparse_products(sparse_of(left), sparse_of(right)) == expected).all()
    queries = to_integers(dense_of(left))
    assert (dense_by_sparse_products(queries, sparse_of(right)) == expected).all()


@pytest.mark.parametrize("d", [1, 2, 3, 610, 4099, 32768])
def test_the_substitute_is_that_of_dense_rows(d: int) -> None:
    assert (substitute_row(d) * 2**24 == substitute_integer(d)).all()


def test_a_substitute_of_a_million_features_is_no_longer_than_one() -> None:
    assert 0 < substitute_integer(10**6) ** 2 * 10**6 <= 4**24


@pytest.mark.parametrize("place", [(0, 0), (0, 1300), (1024, 2048)])
def test_noisy_blocks_are_those_of_the_dense_rows(place: tuple[int, int]) -> None:
    row, column = place
    values = np.abs(ratings(2600, 24, 0.1, 5))
    mechanism = calibrate_gram(2600, 24, 8.0, 1e-6, score_range=ScoreRange(0.0, 1.0))
    left, right = (
        (values[:1300] if row == column else values[row : row + 200]),
        values[column:][:1300],
    )
    found = noisy_block(mechanism, sparse_of(left), sparse_of(right), row, column, KEY, "r")
    expected = noisy_block(mechanism, dense_of(left), dense_of(right), row, column, KEY, "r")
    assert found.tobytes() == expected.tobytes()


def test_noisy_scores_are_those_of_the_dense_rows() -> None:
    values = ratings(1500, 30, 0.1, 7)
    queries = to_fixed(np.random.default_rng(1).normal(size=(5, 30)))
    mechanism = calibrate_scores(1500, queries, 8.0, 1e-6)
    found = noisy_block(mechanism, queries, sparse_of(values), 0, 0, KEY, "r")
    expected = noisy_block(mechanism, queries, dense_of(values), 0, 0, KEY, "r")
    assert found.tobytes() == expected.tobytes()


def rows_of(columns: list[int], integers: list[int]) -> SparseRows:
    pointers = np.array([0, len(columns)], dtype=np.int64)
    return SparseRows(pointers, np.array(columns, np.int32), np.array(integers, np.int32), 4)


@pytest.mark.parametrize(
    ("columns", "integers", "complaint"),
    [
        ([0, 4], [5, 5], "canonical"),
        ([-1, 2], [5, 5], "canonical"),
        ([2, 2], [2**23, 2**23], "canonical"),
        ([3, 2], [5, 5], "canonical"),
        ([1, 2], [5, 0], "canonical"),
        ([1, 2], [2**24, 1], "longer than one"),
        ([1], [-(2**31)], "longer than one"),
    ],
)
def test_rows_that_break_the_bounds_are_refused(
    columns: list[int], integers: list[int], complaint: str
) -> None:
    check_fixed_sparse(rows_of([0, 3], [-(2**23), 2**23]))
    check_fixed_sparse(rows_of([1], [2**24]))
    with pytest.raises(InputRejected, match=complaint):
        check_fixed_sparse(rows_of(columns, integers))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputRejected, match="NaN or infinite"):
        to_fixed_sparse(np.array([0, 2]), np.array([1.0, value]), 4)
