"""Fixed-point rows: on the grid, never longer than one, close to the unit row, the same bits."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from scoreshield.arithmetic.fixedpoint import (
    check_fixed,
    exact_products,
    rounding_radius,
    substitute_row,
    to_fixed,
    to_integers,
)
from scoreshield.errors import InputRejected

UNIT = 2**24


def python_integers(rows: NDArray[np.float32]) -> list[list[int]]:
    """Rows as Python integers in units of 2^-24; fails where a value is off the grid."""
    exact = [[Fraction(float(value)) * UNIT for value in row] for row in rows]
    assert all(value.denominator == 1 for row in exact for value in row)
    return [[int(value) for value in row] for row in exact]


def assert_fixed(rows: NDArray[np.float32]) -> None:
    assert rows.dtype == np.float32
    for row in python_integers(rows):
        assert sum(value * value for value in row) <= UNIT**2


def rows_of(d: int, count: int = 6) -> NDArray[np.float64]:
    """Rows of every kind that could strain the norm: dense, sparse, equal, of mixed magnitudes."""
    random = np.random.default_rng(d)
    dense = random.standard_normal((count, d))
    mixed = dense * 10.0 ** random.uniform(-12, 12, (count, d))
    one_hot = np.eye(1, d, d // 2)
    equal = np.full((1, d), 0.3)
    opposite = -dense[:1] * (1 + 2**-40)
    denormal = np.full((1, d), 5e-324)
    huge = dense[:1] * 1e307
    return np.concatenate([dense, mixed, one_hot, equal, opposite, denormal, huge])


finite = st.floats(allow_nan=False, allow_infinity=False)
any_rows = st.integers(1, 9).flatmap(
    lambda d: hypothesis_numpy.arrays(np.float64, (3, d), elements=finite)
)


@given(any_rows)
@settings(max_examples=200, deadline=None)
def test_rows_of_any_magnitude_are_on_the_grid_and_never_too_long(rows: NDArray[Any]) -> None:
    rows = rows[np.any(rows != 0, axis=1)]
    if len(rows):
        assert_fixed(to_fixed(rows))


@given(st.integers(1, 4096), st.integers(0, 2**32), st.floats(-300, 300), st.floats(0, 8))
@settings(max_examples=40, deadline=None)
def test_rows_of_any_dimension_are_on_the_grid_and_never_too_long(
    d: int, seed: int, magnitude: float, spread: float
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((2, d)) * 10.0 ** (magnitude + random.uniform(-spread, 0, (2, d)))
    assert_fixed(to_fixed(rows))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 127, 1000, 4096])
def test_norms_at_every_dimension(d: int) -> None:
    assert_fixed(to_fixed(rows_of(d)))


def test_norms_at_the_largest_dimension() -> None:
    random = np.random.default_rng(0)
    rows = np.stack([np.ones(2**15), random.standard_normal(2**15), random.exponential(size=2**15)])
    assert_fixed(to_fixed(rows))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 127, 1000, 4096, 2**15])
def test_rounding_moves_a_row_by_at_most_the_stated_radius(d: int) -> None:
    """The distance is from (1 − ρ) times the unit row, computed with 64-bit mantissas."""
    rows = rows_of(d)
    exact = rows.astype(np.longdouble)
    exact /= np.max(np.abs(exact), axis=1, keepdims=True)
    exact /= np.sqrt(np.sum(exact * exact, axis=1, keepdims=True))
    radius = np.longdouble(rounding_radius(d))
    distance = np.sqrt(np.sum((to_fixed(rows) - (1 - radius) * exact) ** 2, axis=1))
    assert np.all(distance <= radius)
    # The bound is no idle one: equal or random coordinates come within a factor of a few.
    assert d < 3 or distance.max() > 0.3 * radius


@pytest.mark.parametrize("d", [2, 16, 300])
def test_the_stated_radius_in_exact_arithmetic(d: int) -> None:
    rows = np.random.default_rng(d + 1).standard_normal((3, d))
    radius = Fraction(rounding_radius(d))
    for row, fixed in zip(rows, to_fixed(rows), strict=True):
        exact = [Fraction(float(value)) for value in row]
        fixed_exact = [Fraction(float(value)) for value in fixed]
        norm_squared = sum(value * value for value in exact)
        # ‖f − (1−ρ)u‖² = ‖f‖² − 2(1−ρ)⟨f, x⟩/‖x‖ + (1−ρ)²; a lower bound of 1/‖x‖ enlarges it.
        scaled = norm_squared * 2**400
        root_above = Fraction(math.isqrt(int(scaled)) + 1, 2**200)
        inner = sum(f * x for f, x in zip(fixed_exact, exact, strict=True))
        assert inner > 0
        distance_squared = (
            sum(f * f for f in fixed_exact)
            - 2 * (1 - radius) * inner / root_above
            + (1 - radius) ** 2
        )
        assert distance_squared <= radius**2


def test_close_unit_rows_stay_within_the_shift_bound() -> None:
    """‖f − f′‖ ≤ r + 2ρ is what adjacency `shift` adds to its radius."""
    random = np.random.default_rng(3)
    for d in (2, 5, 200):
        one = random.standard_normal((200, d))
        other = one + random.standard_normal((200, d)) * 10.0 ** random.uniform(-9, 0, (200, 1))
        units = [
            rows / np.linalg.norm(rows, axis=1, keepdims=True)
            for rows in (one.astype(np.longdouble), other.astype(np.longdouble))
        ]
        distance = np.linalg.norm(units[0] - units[1], axis=1)
        moved = np.linalg.norm(to_fixed(one).astype(float) - to_fixed(other).astype(float), axis=1)
        assert np.all(moved <= distance + 2 * rounding_radius(d))


def test_bits_do_not_depend_on_panel_order_or_layout() -> None:
    rows = rows_of(37, 50)
    whole = to_fixed(rows)
    for size in (1, 3, 17):
        panels = [to_fixed(rows[at : at + size]) for at in range(0, len(rows), size)]
        assert np.concatenate(panels).tobytes() == whole.tobytes()
    layouts: list[NDArray[Any]] = [
        np.asfortranarray(rows),
        rows.astype(">f8"),
        np.repeat(rows, 2, axis=1)[:, ::2],
        rows[::-1][::-1],
    ]
    for other in layouts:
        assert to_fixed(other).tobytes() == whole.tobytes()
    assert whole.flags.c_contiguous


@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", ">f4", "i1", "u1", "<i4", ">i8", "u2"])
def test_other_types_are_read_by_value(kind: str) -> None:
    rows = np.random.default_rng(1).integers(1, 100, (20, 9))
    assert to_fixed(rows.astype(kind)).tobytes() == to_fixed(rows.astype(np.float64)).tobytes()


def test_powers_of_two_change_nothing() -> None:
    rows = np.random.default_rng(2).standard_normal((20, 9))
    for exponent in (-900, -30, 1, 900):
        assert to_fixed(np.ldexp(rows, exponent)).tobytes() == to_fixed(rows).tobytes()


def test_a_second_rounding_keeps_the_direction() -> None:
    """Fixed rows are not a fixed point of rounding, but they hardly move."""
    once = to_fixed(np.random.default_rng(4).standard_normal((30, 50)))
    assert np.abs(to_fixed(once) - once).max() < 2 * rounding_radius(50) + 2.0**-24


@pytest.mark.parametrize(
    ("offending", "complaint"),
    [
        ([np.nan, 1.0], "NaN or infinite"),
        ([np.inf, 1.0], "NaN or infinite"),
        ([-np.inf, np.nan], "NaN or infinite"),
        ([0.0, -0.0], "are zero"),
    ],
)
def test_rows_without_a_direction_are_refused_by_number(
    offending: list[float], complaint: str
) -> None:
    rows = np.ones((9, 2))
    rows[[4, 7]] = offending
    with pytest.raises(InputRejected, match=complaint) as error:
        to_fixed(rows)
    assert "2 of 9 rows" in str(error.value)
    assert "4, 7" in str(error.value)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([2.0**-25, 0.0], "multiples"),
        ([0.25 + 2.0**-25, 0.0], "multiples"),
        ([np.nan, 0.0], "multiples"),
        ([np.inf, 0.0], "longer"),
        ([-np.inf, np.inf], "longer"),
        ([1.0, 2.0**-24], "longer"),
        ([1.0 + 2.0**-23, 0.0], "longer"),
        ([3e38, 0.0], "longer"),
        ([1e30, -1e30], "longer"),
    ],
)
def test_rows_that_break_the_sensitivity_are_caught(row: list[float], complaint: str) -> None:
    rows = np.zeros((3, 2), dtype=np.float32)
    rows[1] = row
    with pytest.raises(InputRejected, match=complaint) as error:
        check_fixed(rows)
    assert "1 of 3 rows" in str(error.value)


def test_one_unit_too_long_is_caught_in_any_dimension() -> None:
    """Lagrange's four squares fill the norm exactly; one more unit must not pass."""
    for d in (5, 64, 4096):
        row = np.zeros((1, d), dtype=np.float32)
        row[0, :4] = 0.5
        check_fixed(row)
        row[0, -1] = 2.0**-24
        with pytest.raises(InputRejected, match="longer"):
            check_fixed(row)
    many = np.full((1, 4096), 2.0**-6, dtype=np.float32)
    check_fixed(many)
    many[0, 7] += np.float32(2.0**-24)
    with pytest.raises(InputRejected, match="longer"):
        check_fixed(many)


@pytest.mark.parametrize("d", [1, 2, 3, 100, 4096])
def test_the_substitute_row_depends_on_the_dimension_alone(d: int) -> None:
    row = substitute_row(d)
    assert row.shape == (d,)
    assert len(set(row.tolist())) == 1
    assert row[0] > 0
    assert_fixed(row[None])
    assert substitute_row(d).tobytes() == row.tobytes()
    assert np.linalg.norm(row.astype(float)) > 1 - 3 * rounding_radius(d)


# Exact products: bit-identical however they are computed.


def adversarial_gallery(d: int) -> NDArray[np.float32]:
    random = np.random.default_rng(d)
    base = random.standard_normal(d)
    near_parallel = base + random.standard_normal((20, d)) * 1e-7
    return to_fixed(
        np.concatenate([near_parallel, -near_parallel, np.eye(d)[:20], -np.eye(d)[:5], rows_of(d)])
    )


@pytest.mark.parametrize(
    ("gallery", "sides"),
    [
        *((adversarial_gallery(d), (1, 7, 32, 4096)) for d in (3, 64, 513)),
        (to_fixed(np.random.default_rng(9).standard_normal((700, 300))), (256, 4096)),
    ],
    ids=["3", "64", "513", "large"],
)
def test_products_are_the_same_bits_for_any_block_and_thread_count(
    gallery: NDArray[np.float32], sides: tuple[int, ...]
) -> None:
    integers = to_integers(gallery)
    count, d = integers.shape
    whole = exact_products(integers, integers)
    for threads, side in itertools.product((1, 2), sides):
        panels = [integers[at : at + side] for at in range(0, count, side)]
        with threadpool_limits(threads, user_api="blas"):
            blocks = [[exact_products(left, right) for right in panels] for left in panels]
        assert np.block(blocks).tobytes() == whole.tobytes()
    reordered = np.random.default_rng(0).permutation(d)
    assert np.array_equal(exact_products(integers[:, reordered], integers[:, reordered]), whole)
    assert np.array_equal(whole, whole.T)


@pytest.mark.parametrize("d", [3, 64, 513])
def test_products_equal_python_integers(d: int) -> None:
    gallery = adversarial_gallery(d)
    exact = python_integers(gallery)
    found = exact_products(to_integers(gallery), to_integers(gallery))
    random = np.random.default_rng(1)
    for i, j in random.integers(0, len(gallery), (150, 2)):
        expected = sum(a * b for a, b in zip(exact[i], exact[j], strict=True))
        assert Fraction(found[i, j]) == expected
        assert abs(expected) <= 2**48
