"""Every result is exactly feasible, whatever the factor it was made from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scoreshield.errors import ParameterError
from scoreshield.projection.result import (
    ROW_SCALING,
    Projection,
    from_factor,
    gram_of_factor,
    mirror_upper,
)


@settings(deadline=None)
@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(0, 6)),
        elements=st.floats(-1e6, 1e6),
    )
)
def test_any_factor_becomes_exactly_feasible(factor):
    result = from_factor(factor, method="any", parameters={})
    squared = np.sum(result.factor**2, axis=1)
    assert np.all(squared <= 1.0)
    assert np.all(np.linalg.norm(result.factor, axis=1) <= 1.0)
    assert np.all(result.diagonal >= 0.0)
    np.testing.assert_allclose(squared + result.diagonal, 1.0, rtol=0, atol=1e-15)
    gram = result.gram()
    np.testing.assert_array_equal(np.diag(gram), 1.0)
    np.testing.assert_array_equal(gram, gram.T)
    assert np.all(np.abs(gram) <= 1.0)
    assert np.linalg.eigvalsh(gram)[0] >= -1e-13


def test_the_gram_is_the_product_off_the_diagonal_in_every_panel():
    factor = np.random.default_rng(0).normal(size=(600, 40)) / 10.0
    result = from_factor(factor, method="any", parameters={})
    expected = result.factor @ result.factor.T
    np.fill_diagonal(expected, 1.0)
    gram = result.gram()
    np.testing.assert_allclose(gram, expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(gram, gram.T)


def test_rows_that_rounding_left_outside_the_ball_stay_in_the_box():
    gram = gram_of_factor(np.array([[1.0 + 1e-12], [1.0], [-1.0]]))
    np.testing.assert_array_equal(gram, [[1, 1, -1], [1, 1, -1], [-1, -1, 1]])


def test_the_upper_triangle_is_mirrored_across_panels():
    matrix = np.random.default_rng(0).normal(size=(600, 600))
    expected = np.triu(matrix) + np.triu(matrix, 1).T
    mirror_upper(matrix)
    np.testing.assert_array_equal(matrix, expected)


def test_rows_inside_the_ball_are_kept():
    factor = np.array([[0.6, 0.0], [3.0, 4.0]])
    result = from_factor(factor, method="any", parameters={"weight": 0.5})
    np.testing.assert_array_equal(result.factor[0], factor[0])
    np.testing.assert_allclose(result.factor[1], [0.6, 0.8], rtol=1e-14)
    assert result.diagonal[0] == pytest.approx(0.64)
    assert result.parameters == {"weight": 0.5, "post_step": ROW_SCALING}
    assert (result.rank, result.feasible) == (2, True)


@pytest.mark.parametrize("factor", [np.ones(3), np.array([[np.nan]]), np.array([[np.inf]])])
def test_a_broken_factor_is_refused(factor):
    with pytest.raises(ParameterError, match="finite"):
        from_factor(factor, method="any", parameters={})


def test_a_result_of_nothing_says_so():
    empty = Projection(
        factor=None,
        diagonal=None,
        method="any",
        rank=0,
        iterations=0,
        products=0,
        history=(),
        certificate=None,
        parameters={},
        converged=False,
        feasible=False,
    )
    with pytest.raises(ParameterError, match="neither a factor nor a matrix"):
        empty.gram()
