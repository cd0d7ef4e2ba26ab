"""Sensitivities against exact arithmetic, and against galleries that try to exceed them."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import exact_products, rounding_radius, to_fixed, to_integers
from scoreshield.errors import ParameterError
from scoreshield.privacy.sensitivity import (
    FULL_RANGE,
    Adjacency,
    ScoreRange,
    gram_sensitivity,
    scores_sensitivity,
    spectral_norm_bound,
)

RECORD = Adjacency("record")
GRID = 2.0**-20


def assert_tight_above(value: float, exact_square: Fraction) -> None:
    """value² is at least the exact square, and at most 2^-44 (relative) above it."""
    square = Fraction(value) ** 2
    assert exact_square <= square <= exact_square * (1 + Fraction(1, 2**44))


@pytest.mark.parametrize("n", [2, 3, 10, 1797, 100_000, 10**7])
@pytest.mark.parametrize("grid", [0.0, GRID, 0.125, 8.0])
@pytest.mark.parametrize(
    ("adjacency", "score_range", "reach"),
    [
        (RECORD, FULL_RANGE, Fraction(2)),
        (RECORD, ScoreRange(0, 1), Fraction(1)),
        (RECORD, ScoreRange(-0.1, 0.7), Fraction(0.7) - Fraction(-0.1)),
        (Adjacency("shift", 0.1), FULL_RANGE, Fraction(0.1) + 2 * Fraction(rounding_radius(64))),
        (Adjacency("shift", 2.0), FULL_RANGE, Fraction(2)),
        (Adjacency("shift", 1.5), ScoreRange(0, 1), Fraction(1)),
    ],
)
def test_gram_by_adjacency(
    n: int, grid: float, adjacency: Adjacency, score_range: ScoreRange, reach: Fraction
) -> None:
    found = gram_sensitivity(n, 64, adjacency, score_range, grid)
    assert_tight_above(found.value, (reach + Fraction(grid)) ** 2 * (n - 1))
    assert f"sqrt({n} - 1)" in found.derivation


@pytest.mark.parametrize("radius", [1e-12, 0.3, 1.0, 1e5])
def test_output_is_defined_on_the_released_object(radius: float) -> None:
    adjacency = Adjacency("output", radius)
    gram = gram_sensitivity(50, 8, adjacency, FULL_RANGE, 0.25)
    assert_tight_above(gram.value, Fraction(radius) ** 2 / 2)
    scores = scores_sensitivity(_rows(3, 8), adjacency, FULL_RANGE, 0.25)
    assert_tight_above(scores.value, Fraction(radius) ** 2)
    assert "tau" in gram.derivation
    assert "tau" in scores.derivation


def _rows(m: int, d: int, seed: int = 0) -> NDArray[np.float32]:
    return to_fixed(np.random.default_rng(seed).standard_normal((m, d)))


@pytest.mark.parametrize("grid", [0.0, GRID, 0.5])
def test_one_query_has_sensitivity_two(grid: float) -> None:
    found = scores_sensitivity(_rows(1, 30), RECORD, FULL_RANGE, grid)
    # At most 2; a fixed-point query is a little shorter than one, and that may be used.
    assert (2 - 1e-5 + grid) <= found.value <= (2 + grid) * (1 + 2.0**-47)


def test_joint_queries_pay_the_spectral_norm() -> None:
    same = np.repeat(_rows(1, 30), 9, axis=0)
    assert scores_sensitivity(same, RECORD, FULL_RANGE, 0.0).value == pytest.approx(6, rel=1e-6)
    apart = to_fixed(np.eye(9, 30))
    assert scores_sensitivity(apart, RECORD, FULL_RANGE, 0.0).value == pytest.approx(2, rel=1e-6)
    assert scores_sensitivity(apart, RECORD, FULL_RANGE, 0.25).value == pytest.approx(
        2 + 0.25 * 3, rel=1e-6
    )


def test_a_score_range_or_a_shift_shrinks_the_joint_sensitivity() -> None:
    same = np.repeat(_rows(1, 30), 9, axis=0)
    half = scores_sensitivity(same, RECORD, ScoreRange(0, 1), 0.0)
    assert_tight_above(half.value, Fraction(9))
    shift = scores_sensitivity(same, Adjacency("shift", 0.01), FULL_RANGE, 0.0)
    assert shift.value == pytest.approx(3 * (0.01 + 2 * rounding_radius(30)), rel=1e-6)
    clipped = scores_sensitivity(same, Adjacency("shift", 1.5), ScoreRange(0.5, 0.75), 0.0)
    assert_tight_above(clipped.value, Fraction(9, 16))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_joint_queries_never_exceed_two_root_m(m: int, d: int, seed: int) -> None:
    queries = _rows(m, d, seed)
    bound = spectral_norm_bound(queries)
    assert np.linalg.norm(queries.astype(np.float64), 2) <= bound * (1 + 1e-13)
    assert bound**2 <= m * (1 + 2.0**-46)
    assert scores_sensitivity(queries, RECORD, FULL_RANGE, 0.0).value <= 2 * math.sqrt(m) * (
        1 + 2.0**-46
    )


@given(st.integers(1, 12), st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_the_spectral_norm_of_two_queries_is_rounded_up(d: int, seed: int) -> None:
    queries = _rows(2, d, seed)
    if seed % 3 == 0:
        queries[1] = queries[0]
    exact = [[Fraction(float(value)) for value in row] for row in queries]
    a, b, c = (
        sum((x * y for x, y in zip(exact[i], exact[j], strict=True)), Fraction(0))
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    with mpmath.workdps(60):
        half_gap, mean, inner = (
            mpmath.mpf(value.numerator) / value.denominator
            for value in ((a - c) / 2, (a + c) / 2, b)
        )
        largest = mean + mpmath.sqrt(half_gap**2 + inner**2)
        assert mpmath.mpf(spectral_norm_bound(queries)) ** 2 >= largest


def test_queries_without_a_norm_are_refused() -> None:
    with pytest.raises((ParameterError, np.linalg.LinAlgError)):
        spectral_norm_bound(np.full((2, 3), np.nan, dtype=np.float32))


# Galleries that try to exceed the bound. The change is measured on the values that get the noise:
# exact products, clipped, rounded to the grid, strict upper triangle.


def grid_values(
    left: NDArray[np.float32], right: NDArray[np.float32], grid: float, score_range: ScoreRange
) -> NDArray[np.float64]:
    clean = exact_products(to_integers(left), to_integers(right)) * 2.0**-48
    clean = np.clip(clean, score_range.low, score_range.high)
    return np.rint(clean / grid) * grid if grid else clean


def gram_change(
    one: NDArray[np.float32],
    other: NDArray[np.float32],
    grid: float,
    score_range: ScoreRange = FULL_RANGE,
) -> float:
    upper = np.triu_indices(len(one), 1)
    before = grid_values(one, one, grid, score_range)[upper]
    after = grid_values(other, other, grid, score_range)[upper]
    return float(np.linalg.norm(before - after))


def replaced(
    gallery: NDArray[np.float32], row: int, by: NDArray[np.float32]
) -> NDArray[np.float32]:
    other = gallery.copy()
    other[row] = by
    return other


@given(
    st.integers(2, 12),
    st.integers(1, 6),
    st.sampled_from([0.0, GRID, 0.125, 0.5, 4.0]),
    st.sampled_from([FULL_RANGE, ScoreRange(0, 1), ScoreRange(-0.3, 0.2)]),
    st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_no_replaced_record_exceeds_the_sensitivity(
    n: int, d: int, grid: float, score_range: ScoreRange, seed: int
) -> None:
    gallery, candidates = _rows(n, d, seed), _rows(8, d, seed + 1)
    bound = gram_sensitivity(n, d, RECORD, score_range, grid).value
    parallel = np.repeat(gallery[:1], n, axis=0)
    for start in (gallery, parallel):
        for row in (0, n - 1):
            for by in (*candidates, -start[row], -start[0]):
                change = gram_change(start, replaced(start, row, by), grid, score_range)
                assert change <= bound


def worst_case(n: int, d: int = 5) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """All rows equal, one of them reversed."""
    gallery = np.repeat(_rows(1, d), n, axis=0)
    return gallery, replaced(gallery, n // 2, -gallery[0])


@pytest.mark.parametrize("n", [2, 3, 16, 300])
def test_the_worst_pair_attains_the_sensitivity(n: int) -> None:
    bound = gram_sensitivity(n, 5, RECORD, FULL_RANGE, GRID).value
    assert 0.999 * bound <= gram_change(*worst_case(n), GRID) <= bound
    promised = ScoreRange(0, 1)
    gallery = np.repeat(to_fixed(np.eye(1, 2)), n, axis=0)
    other = replaced(gallery, n // 2, to_fixed(np.eye(2))[1])
    bound = gram_sensitivity(n, 2, RECORD, promised, GRID).value
    assert 0.999 * bound <= gram_change(gallery, other, GRID, promised) <= bound


def test_a_sensitivity_without_the_replacement_factor_two_is_caught() -> None:
    """Control: the sensitivity of adding a record would not survive the worst pair."""
    halved = gram_sensitivity(16, 5, RECORD, FULL_RANGE, GRID).value / 2
    assert gram_change(*worst_case(16), GRID) > 1.9 * halved


def test_the_full_matrix_has_root_two_times_the_triangle() -> None:
    one, other = worst_case(16)
    full = np.linalg.norm(
        grid_values(one, one, 0, FULL_RANGE) - grid_values(other, other, 0, FULL_RANGE)
    )
    assert full == pytest.approx(math.sqrt(2) * gram_change(one, other, 0))


@given(
    st.integers(2, 12),
    st.integers(2, 6),
    st.sampled_from([0.0, GRID, 0.125]),
    st.floats(1e-9, 2.0),
    st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_no_shifted_record_exceeds_the_sensitivity(
    n: int, d: int, grid: float, radius: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    bound = gram_sensitivity(n, d, Adjacency("shift", radius), FULL_RANGE, grid).value
    for step in random.standard_normal((8, d)):
        shifted = _shifted(rows[0], step, radius * (1 - 1e-12))
        for gallery in (rows, np.concatenate([rows[:1], np.repeat(rows[1:2], n - 1, axis=0)])):
            other = gallery.copy()
            other[0] = shifted
            assert gram_change(to_fixed(gallery), to_fixed(other), grid) <= bound


def _shifted(row: NDArray[np.float64], step: NDArray[np.float64], r: float) -> NDArray[np.float64]:
    """The unit row at chord distance r from ``row``, in the plane of ``row`` and ``step``."""
    tangent = step - (step @ row) * row
    tangent /= np.linalg.norm(tangent)
    half = math.asin(r / 2)
    return math.cos(2 * half) * row + math.sin(2 * half) * tangent


@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.9])
def test_the_worst_shift_attains_the_sensitivity(radius: float) -> None:
    """The record crosses the plane at right angles to all the others."""
    sine = radius / 2 * (1 - 1e-12)
    cosine = math.sqrt(1 - sine * sine)
    gallery = np.tile([0.0, 1.0], (16, 1))
    gallery[0] = cosine, sine
    other = gallery.copy()
    other[0] = cosine, -sine
    bound = gram_sensitivity(16, 2, Adjacency("shift", radius), FULL_RANGE, GRID).value
    change = gram_change(to_fixed(gallery), to_fixed(other), GRID)
    assert 0.997 * bound <= change <= bound


def test_the_grid_term_is_needed() -> None:
    """A shift far smaller than the grid moves every entry across a rounding boundary."""
    grid, radius = 0.25, 1e-5
    gallery = np.tile([1.0, 0.0], (10, 1))
    at = math.acos(0.375 + 2e-6)
    gallery[0] = math.cos(at), math.sin(at)
    other = gallery.copy()
    other[0] = math.cos(at + radius), math.sin(at + radius)
    adjacency = Adjacency("shift", radius)
    change = gram_change(to_fixed(gallery), to_fixed(other), grid)
    assert change > 1000 * gram_sensitivity(10, 2, adjacency, FULL_RANGE, 0.0).value
    assert change <= gram_sensitivity(10, 2, adjacency, FULL_RANGE, grid).value


@given(
    st.integers(1, 10),
    st.integers(1, 6),
    st.sampled_from([0.0, GRID, 0.25]),
    st.sampled_from([FULL_RANGE, ScoreRange(0, 1)]),
    st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_no_replaced_record_exceeds_the_sensitivity_of_scores(
    m: int, d: int, grid: float, score_range: ScoreRange, seed: int
) -> None:
    queries = _rows(m, d, seed)
    bound = scores_sensitivity(queries, RECORD, score_range, grid).value
    worst = to_fixed(np.linalg.svd(queries.astype(np.float64))[2][:1])[0]
    for one, other in zip(_rows(6, d, seed + 1), _rows(6, d, seed + 2), strict=True):
        for a, b in ((one, other), (one, -one), (worst, -worst)):
            before, after = (grid_values(queries, x[None], grid, score_range) for x in (a, b))
            assert np.linalg.norm(before - after) <= bound


def test_the_worst_record_attains_the_sensitivity_of_scores() -> None:
    queries = _rows(7, 5)
    worst = to_fixed(np.linalg.svd(queries.astype(np.float64))[2][:1])
    before = grid_values(queries, worst, GRID, FULL_RANGE)
    change = np.linalg.norm(before - grid_values(queries, -worst, GRID, FULL_RANGE))
    bound = scores_sensitivity(queries, RECORD, FULL_RANGE, GRID).value
    assert 0.999 * bound <= change <= bound


@pytest.mark.parametrize(
    ("kind", "radius", "complaint"),
    [
        ("record", 0.5, "takes no radius"),
        ("shift", None, "positive radius"),
        ("shift", 0.0, "positive radius"),
        ("shift", -1.0, "positive radius"),
        ("shift", math.nan, "positive radius"),
        ("output", math.inf, "positive radius"),
        ("shift", 2.1, "is adjacency 'record'"),
        ("person", None, "'record', 'shift' or 'output', found 'person'"),
    ],
)
def test_impossible_adjacencies_are_refused(
    kind: str, radius: float | None, complaint: str
) -> None:
    with pytest.raises(ParameterError, match=complaint):
        Adjacency(kind, radius)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bounds", [(0.5, 0.5), (1, 0), (-1.1, 1), (0, 1.1), (math.nan, 1), (0, math.nan)]
)
def test_impossible_score_ranges_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ParameterError, match="score_range"):
        ScoreRange(*bounds)


def test_a_sensitivity_that_overflows_is_refused() -> None:
    with pytest.raises(ParameterError, match="positive and finite"):
        gram_sensitivity(10, 2, RECORD, FULL_RANGE, math.inf)
    with pytest.raises(ParameterError, match="positive and finite"):
        gram_sensitivity(10, 2, RECORD, FULL_RANGE, math.nan)
