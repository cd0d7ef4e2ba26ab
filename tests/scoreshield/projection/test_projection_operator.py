"""The operator protocol: what is refused, what is repaired, what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from scoreshield.errors import InputRejected
from scoreshield.projection.operator import (
    CountingOperator,
    DenseOperator,
    SymmetricOperator,
    UnitDiagonalOperator,
    as_operator,
    dense,
    materialise,
)


class ArrayByProducts:
    """A stand-in for a blockwise operator: nothing but the protocol, diagonal as it comes."""

    def __init__(self, array):
        self.array = array
        self.n = array.shape[0]
        self.diagonal = np.diag(array).copy()

    def matmat(self, W):
        return self.array @ W


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4)), r"shape \(3, 4\), expected \(n, n\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros((0, 0)), r"n ≥ 1"),
        (np.eye(2, dtype=complex), "complex128, expected real"),
        (np.array([["a", "b"], ["b", "a"]]), "expected real numbers"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "nan at row 0, column 1"),
        (np.array([[1.0, 0.0], [0.0, -np.inf]]), "-inf at row 1, column 1"),
        (
            np.array([[1.0, -2e15], [-2e15, 1.0]]),
            r"holds -2e\+15 at row 0, column 1",
        ),
        (np.array([[1.0, 0.5, 0], [0.5, 1, 0.2], [0, 0.3, 1]]), r"0\.2\S* at \(1, 2\)"),
    ],
)
def test_refuses_what_is_no_finite_symmetric_matrix(array, message):
    with pytest.raises(InputRejected, match=message):
        DenseOperator(array)


def test_names_positions_beyond_the_first_panel():
    array = np.zeros((600, 600))
    array[400, 550] = 1.0
    with pytest.raises(InputRejected, match=r"at \(400, 550\)"):
        DenseOperator(array)
    array[400, 550] = array[550, 400] = np.nan
    with pytest.raises(InputRejected, match="row 400, column 550"):
        DenseOperator(array)
    array[400, 550] = array[550, 400] = 1e16
    with pytest.raises(InputRejected, match=r"holds 1e\+16 at row 400, column 550"):
        DenseOperator(array)


def test_the_diagonal_may_be_as_large_as_it_likes():
    assert DenseOperator(np.diag([1e300, -3.0])).array.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_asymmetry_at_rounding_level_is_averaged():
    array = np.random.default_rng(0).normal(size=(300, 300))
    symmetric = (array + array.T) / 2
    perturbed = symmetric + 1e-10 * array
    result = DenseOperator(perturbed).array
    np.testing.assert_array_equal(result, result.T)
    off_diagonal = ~np.eye(300, dtype=bool)
    np.testing.assert_allclose(result[off_diagonal], symmetric[off_diagonal], atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f8", np.int8, bool])
def test_reads_any_real_type(dtype):
    array = np.array([[0, 1], [1, 0]], dtype=dtype)
    np.testing.assert_array_equal(DenseOperator(array).array, np.ones((2, 2)))


def test_the_input_is_copied_and_its_diagonal_replaced_by_one(noisy_gram):
    noisy = noisy_gram(20, 0.5)
    np.fill_diagonal(noisy, -7.0)
    before = noisy.copy()
    operator = DenseOperator(noisy)
    np.testing.assert_array_equal(noisy, before)
    np.testing.assert_array_equal(np.diag(operator.array), 1.0)
    np.testing.assert_array_equal(operator.diagonal, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        operator.array[0, 1] = 3.0


def test_products_agree_with_the_unit_diagonal_matrix(noisy_gram):
    noisy = noisy_gram(300, 0.5)
    np.fill_diagonal(noisy, np.linspace(-3, 3, 300))
    W = np.random.default_rng(3).normal(size=(300, 5))
    expected = DenseOperator(noisy).array @ W
    by_products = as_operator(ArrayByProducts(noisy))
    assert isinstance(by_products, UnitDiagonalOperator)
    assert isinstance(by_products, SymmetricOperator)
    np.testing.assert_allclose(by_products.matmat(W), expected, atol=1e-12)
    np.testing.assert_allclose(dense(by_products), DenseOperator(noisy).array, atol=1e-13)


def test_counts_products_and_columns(noisy_gram):
    counted = CountingOperator(DenseOperator(noisy_gram(40, 0.1)))
    counted.matmat(np.ones((40, 3)))
    counted.matmat(np.ones((40, 4)))
    assert (counted.products, counted.columns) == (2, 7)


def test_an_array_is_materialised_for_free_and_products_are_reported(noisy_gram):
    noisy = noisy_gram(300, 0.1)
    operator = DenseOperator(noisy)
    matrix, products = materialise(operator)
    assert matrix is operator.array
    assert products == 0
    matrix, products = materialise(ArrayByProducts(noisy))
    assert products == 2
    np.testing.assert_allclose(matrix, operator.array, atol=1e-14)


def test_an_operator_with_a_broken_diagonal_is_refused():
    operator = ArrayByProducts(np.eye(4))
    operator.diagonal = np.array([1.0, 1.0, np.nan, 1.0])
    with pytest.raises(InputRejected, match="nan at row 2"):
        as_operator(operator)
    operator.diagonal = np.ones(3)
    with pytest.raises(InputRejected, match=r"shape \(3,\), expected \(4,\)"):
        as_operator(operator)
