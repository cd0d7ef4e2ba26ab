"""Codes: a function of the noisy value alone, wide enough for it, and finer than its noise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.noise.encoding import (
    COARSEST_STEP,
    FLOAT32,
    Encoding,
    IntegerType,
    choose_encoding,
    integer_codes,
)
from scoreshield.projection import project

sigmas = st.floats(1e-4, 1e6)
types = st.sampled_from(["int16", "int8"])


@given(sigma=sigmas, dtype=types)
def test_codes_reach_eight_sigma_and_hardly_further(sigma: float, dtype: IntegerType) -> None:
    encoding = integer_codes(dtype, sigma)
    reach = Fraction(encoding.scale) * encoding.largest_code
    assert 1 + 8 * Fraction(sigma) <= reach <= (1 + 8 * Fraction(sigma)) * Fraction(129, 128)


@given(sigma=sigmas, dtype=types)
def test_a_code_is_read_back_exactly(sigma: float, dtype: IntegerType) -> None:
    encoding = integer_codes(dtype, sigma)
    codes = np.arange(-encoding.largest_code, encoding.largest_code + 1).astype(dtype)[None]
    values = encoding.decode(codes)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.astype(float), codes.astype(float) * encoding.scale)
    np.testing.assert_array_equal(encoding.encode(values), codes)
    assert encoding.is_intact(codes)


@given(sigma=sigmas, dtype=types, data=st.data())
def test_a_value_moves_by_half_a_step_at_most(
    sigma: float, dtype: IntegerType, data: st.DataObject
) -> None:
    encoding = integer_codes(dtype, sigma)
    reach = 1 + 8 * sigma
    drawn = data.draw(st.lists(st.floats(-reach, reach), min_size=1, max_size=20))
    values = np.array([drawn], dtype=np.float32)
    moved = np.abs(encoding.decode(encoding.encode(values)).astype(float) - values)
    # A value at the very end may have been cast beyond it.
    assert (moved <= encoding.scale / 2 + 2.0**-23 * reach).all()


@given(sigma=sigmas, dtype=types, seed=st.integers(0, 99), row=st.integers(0, 199))
def test_a_code_depends_on_its_value_alone(
    sigma: float, dtype: IntegerType, seed: int, row: int
) -> None:
    encoding = integer_codes(dtype, sigma)
    values = (sigma * np.random.default_rng(seed).normal(size=(200, 3))).astype(np.float32)
    whole = encoding.encode(values)
    np.testing.assert_array_equal(encoding.encode(values[row:]), whole[row:])
    np.testing.assert_array_equal(encoding.encode(np.asfortranarray(values)), whole)
    np.testing.assert_array_equal(encoding.encode(-values), -whole)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_ties_go_to_even_and_what_is_far_out_is_held(dtype: IntegerType) -> None:
    encoding = Encoding(dtype, 0.25)
    most = encoding.largest_code
    values = np.array([[0.125, 0.375, -0.125, -0.375, 1e30, -1e30]], dtype=np.float32)
    np.testing.assert_array_equal(encoding.encode(values), [[0, 2, 0, -2, most, -most]])
    assert encoding.is_intact(encoding.encode(values))
    assert not encoding.is_intact(np.array([[0, encoding.missing]], dtype=dtype))


@pytest.mark.parametrize(
    ("sigma", "dtype"),
    [
        (1e-6, "float32"),
        (3e-4, "float32"),
        (4e-4, "int16"),
        (0.05, "int16"),
        (0.38, "int16"),
        (0.4, "int8"),
        (1.0, "int8"),
        (1e9, "int8"),
    ],
)
def test_auto_takes_the_smallest_type_that_is_fine_enough(sigma: float, dtype: str) -> None:
    encoding = choose_encoding(sigma)
    assert encoding.dtype == dtype
    assert encoding.added_variance(sigma) <= COARSEST_STEP**2 / 12
    assert choose_encoding(sigma, "float32") == FLOAT32
    assert FLOAT32.added_variance(sigma) == 0


def test_a_large_sigma_costs_a_thirtieth_of_a_percent() -> None:
    assert choose_encoding(1e4).added_variance(1e4) == pytest.approx((8 / 127) ** 2 / 12, rel=0.02)
    assert choose_encoding(1e4).added_variance(1e4) < 0.00034


def test_a_type_that_is_too_coarse_is_refused_with_its_numbers() -> None:
    assert choose_encoding(0.5, "int16").dtype == "int16"
    with pytest.raises(ParameterError) as caught:
        choose_encoding(0.05, "int8")
    for part in ("precision: int8", "1.4", "0.0110474", "0.221 times sigma = 0.05", "takes int16"):
        assert part in str(caught.value)
    with pytest.raises(ParameterError, match=r"precision: int16 .* takes float32"):
        choose_encoding(1e-5, "int16")


@pytest.fixture(scope="module")
def gallery() -> Any:
    """Clean cosines of 600 clustered records, and one noise for them."""
    random = np.random.default_rng(0)
    n = 600
    rows = random.normal(size=(12, 24))[random.integers(12, size=n)]
    rows = rows + 0.5 * random.normal(size=(n, 24))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    upper = np.triu(random.normal(size=(n, n)), 1)
    return rows @ rows.T, upper + upper.T


@pytest.mark.parametrize("sigma", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(
    "method", ["shrink", "nearest", pytest.param("aap", marks=pytest.mark.slow)]
)
def test_the_error_moves_by_less_than_a_thousandth(gallery: Any, method: str, sigma: float) -> None:
    clean, noise = gallery
    noisy = (clean + sigma * noise).astype(np.float32)
    encoding = choose_encoding(sigma)
    assert encoding.dtype != "float32"
    stored = encoding.decode(encoding.encode(noisy))
    np.fill_diagonal(stored, 1.0)
    assert (stored != noisy).any()
    errors = [
        float(
            np.linalg.norm(project(matrix.astype(float), sigma=sigma, method=method).gram() - clean)
        )
        for matrix in (noisy, stored)
    ]
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)
