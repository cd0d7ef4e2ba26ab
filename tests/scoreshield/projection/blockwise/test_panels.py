"""Panels: the start pattern, the linear combinations, orthonormal bases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.panels import (
    ArrayPanels,
    CountedProducts,
    Term,
    concatenate,
    orthonormalise,
    rows_in_unit_ball,
    scale_rows,
    select,
    start_pattern,
    unit_rows,
)
from scoreshield.projection.operator import DenseOperator


def test_the_start_pattern_depends_on_position_alone():
    whole = start_pattern(range(100), range(12))
    np.testing.assert_array_equal(start_pattern(range(30, 50), range(4, 9)), whole[30:50, 4:9])
    np.testing.assert_array_equal(ArrayPanels(100).start(3, first=5), whole[:, 5:8])


def test_the_start_pattern_looks_random():
    pattern = start_pattern(range(4000), range(50))
    assert np.all(np.abs(pattern) < 1.0)
    # Uniform on (−1, 1): mean 0, variance 1/3; and no two columns lean on each other.
    assert abs(pattern.mean()) < 0.01
    assert pattern.var() == pytest.approx(1 / 3, rel=0.01)
    correlation = np.corrcoef(pattern.T) - np.eye(50)
    assert np.abs(correlation).max() < 5.0 / np.sqrt(4000)


def test_a_combination_adds_up_its_terms():
    rng = np.random.default_rng(0)
    A, B, C, s = (rng.normal(size=shape) for shape in ((20, 3), (20, 4), (4, 3), (20,)))
    before = A.copy()
    combined = ArrayPanels(20).combine([Term(A), Term(B, C, s), Term(A, -0.5, s)])
    np.testing.assert_allclose(combined, A + s[:, None] * (B @ C) - 0.5 * s[:, None] * A)
    np.testing.assert_array_equal(A, before)
    with pytest.raises(ParameterError, match="no panels"):
        ArrayPanels(20).combine([])


def test_columns_are_selected_and_put_side_by_side():
    algebra = ArrayPanels(9)
    A = algebra.start(5)
    halves = concatenate(algebra, select(algebra, A, slice(0, 2)), select(algebra, A, slice(2, 5)))
    np.testing.assert_array_equal(halves, A)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_reductions_are_double_precision(dtype):
    algebra = ArrayPanels(5000, dtype)
    A = algebra.start(4)
    exact = A.astype(np.float64)
    assert algebra.inner(A, A).dtype == np.float64
    np.testing.assert_allclose(algebra.inner(A, A), exact.T @ exact, rtol=1e-13, atol=1e-11)
    np.testing.assert_allclose(algebra.row_inner(A, A), np.sum(exact**2, axis=1), rtol=1e-13)
    assert scale_rows(algebra, A, np.linspace(0, 1, 5000)).dtype == dtype


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-13), (np.float32, 1e-5)])
@settings(deadline=None, max_examples=25)
@given(
    rank=st.integers(1, 8),
    copies=st.integers(0, 4),
    scale=st.floats(1e-6, 1e6),
    seed=st.integers(0, 9),
)
def test_an_orthonormal_basis_drops_dependent_columns(dtype, accuracy, rank, copies, scale, seed):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(60, rank))
    repeated = columns[:, rng.integers(0, rank, copies)]
    panel = np.hstack([columns, repeated, np.zeros((60, 1))])
    panel[:, 0] *= scale
    algebra = ArrayPanels(60, dtype)
    Q = orthonormalise(algebra, panel.astype(dtype))
    assert Q.shape == (60, rank)
    np.testing.assert_allclose(algebra.inner(Q, Q), np.eye(rank), atol=accuracy)
    np.testing.assert_allclose(Q @ (Q.T @ columns), columns, atol=100 * accuracy * scale + 1e-3)


def test_a_basis_beside_another_is_orthogonal_to_it():
    algebra = ArrayPanels(80)
    held = orthonormalise(algebra, algebra.start(10))
    # Nearly inside the span of what is held: without a second pass the overlap would remain.
    panel = held[:, :4] + 1e-5 * algebra.start(4, first=50)
    inside = held @ np.random.default_rng(1).normal(size=(10, 3))
    added = orthonormalise(algebra, np.hstack([panel, inside]), against=[held[:, :6], held[:, 6:]])
    assert added.shape == (80, 4)
    np.testing.assert_allclose(held.T @ added, 0.0, atol=1e-13)
    np.testing.assert_allclose(added.T @ added, np.eye(4), atol=1e-13)


@pytest.mark.parametrize(("dtype", "smallest"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_what_little_of_a_column_lies_outside_a_basis_is_kept(dtype, smallest):
    rng, algebra = np.random.default_rng(3), ArrayPanels(200, dtype)
    held = orthonormalise(algebra, rng.normal(size=(200, 20)).astype(dtype))
    outside = rng.normal(size=(200, 8))
    for size in (1.0, 1e-3, smallest):
        columns = held.astype(np.float64) @ rng.normal(size=(20, 8)) + size * outside
        basis = orthonormalise(algebra, columns.astype(dtype), against=[held])
        assert basis.shape == (200, 8)
        precise = basis.astype(np.float64)
        accuracy = 10 * algebra.precision
        np.testing.assert_allclose(precise.T @ precise, np.eye(8), atol=accuracy)
        np.testing.assert_allclose(held.T @ precise, 0.0, atol=accuracy)
    inside = held @ rng.normal(size=(20, 8)).astype(dtype)
    assert orthonormalise(algebra, inside, against=[held]).shape == (200, 0)


def test_rows_are_brought_into_the_unit_ball_and_onto_the_sphere():
    algebra = ArrayPanels(4)
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [0.6, 0.8]])
    ball, diagonal = rows_in_unit_ball(algebra, rows)
    np.testing.assert_allclose(np.linalg.norm(ball, axis=1), [1.0, 0.5, 0.0, 1.0], atol=1e-14)
    np.testing.assert_allclose(diagonal, [0.0, 0.75, 1.0, 0.0], atol=1e-14)
    assert np.all(np.sum(ball**2, axis=1) <= 1.0)
    np.testing.assert_allclose(np.linalg.norm(unit_rows(algebra, rows), axis=1), [1, 1, 0, 1])


def test_products_are_counted():
    counted = CountedProducts(DenseOperator(np.eye(6)), products=3)
    counted.matmat(np.ones((6, 2)))
    counted.matmat(np.ones((6, 5)))
    assert (counted.n, counted.products, counted.columns) == (6, 5, 7)


def test_a_type_that_is_no_float_is_refused():
    with pytest.raises(ParameterError, match="int32"):
        ArrayPanels(3, np.int32)
