"""The promises of the released float32 arrays, checked in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.mechanisms.released import (
    entry_rounding,
    gram_block,
    publishing_limit,
    released_factor,
    squared_norms,
    verified_limit,
    with_unit_diagonal,
)
from scoreshield.projection.result import rows_within_unit_ball


def unit_rows(n: int, r: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = np.random.default_rng(seed).normal(size=(n, r))
    return rows_within_unit_ball(rows * 3)


def exact_norm(row: np.ndarray[Any, np.dtype[np.float32]]) -> Fraction:
    return sum((Fraction(float(value)) ** 2 for value in row), Fraction(0))


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_exact_norms_are_at_most_one(r: int, seed: int) -> None:
    rows, diagonal = released_factor(unit_rows(6, r, seed))
    assert rows.dtype == diagonal.dtype == np.float32
    for row, rest in zip(rows, diagonal, strict=True):
        assert exact_norm(row) <= 1
        assert rest >= 0
        assert abs(exact_norm(row) + Fraction(float(rest)) - 1) <= Fraction(1, 2**24)
    assert (squared_norms(rows) <= verified_limit(r)).all()


def test_a_plain_cast_would_break_the_promise() -> None:
    """The control: without the shrink a good part of unit rows are too long."""
    cast = unit_rows(200, 12).astype(np.float32)
    assert sum(exact_norm(row) > 1 for row in cast) > 20


def test_rows_move_by_less_than_a_float32_rounding_or_two() -> None:
    factor = unit_rows(500, 30)
    rows, _ = released_factor(factor)
    assert np.abs(rows - factor).max() <= 2.0**-22


def test_short_and_zero_rows_are_kept() -> None:
    factor = np.array([[0.25, 0.5], [0.0, 0.0]])
    rows, diagonal = released_factor(factor)
    np.testing.assert_array_equal(rows, factor)
    np.testing.assert_array_equal(diagonal, [0.6875, 1.0])


@pytest.mark.parametrize("value", [1.01, np.nan, np.inf])
def test_long_or_broken_rows_are_refused(value: float) -> None:
    with pytest.raises(ParameterError, match="the first is row 1"):
        released_factor(np.array([[0.5], [value]]))


def test_limits_are_ordered() -> None:
    for rank in (1, 100, 100_000):
        assert publishing_limit(rank) < verified_limit(rank) < 1


def test_gram_is_within_its_stated_rounding_and_psd() -> None:
    rows, _ = released_factor(unit_rows(80, 10))
    gram = with_unit_diagonal(gram_block(rows, rows))
    assert np.abs(gram).max() <= 1.0
    np.testing.assert_array_equal(gram, gram.T)
    assert (np.diagonal(gram) == 1.0).all()
    for i, j in [(0, 1), (17, 63), (79, 4)]:
        exact = sum(
            Fraction(float(a)) * Fraction(float(b)) for a, b in zip(rows[i], rows[j], strict=True)
        )
        assert abs(Fraction(float(gram[i, j])) - exact) <= Fraction(entry_rounding(10))
    smallest = np.linalg.eigvalsh(gram.astype(np.float64))[0]
    assert smallest >= -80 * entry_rounding(10)


def test_parallel_and_opposite_rows_stay_in_the_box() -> None:
    row = unit_rows(1, 7)
    rows, _ = released_factor(np.concatenate([row, row, -row]))
    block = gram_block(rows, rows)
    assert block.max() <= 1.0
    assert block.min() >= -1.0
