"""The block eigensolver against dense LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.panels import ArrayPanels, CountedProducts
from scoreshield.projection.blockwise.subspace import (
    RitzPairs,
    degree_of_gain,
    krylov_start,
    leading,
    rayleigh_ritz,
    refine,
    residual_norms,
    ritz_values,
    top_eigenpairs,
)


class Matrix:
    """A symmetric array as an operator, diagonal as it is."""

    def __init__(self, array):
        self.array = array.astype(float)
        self.n = array.shape[0]

    def matmat(self, W):
        return self.array @ W


def with_spectrum(values, seed=0):
    n = len(values)
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]
    return (basis * values) @ basis.T


def duplicated_records(n):
    rows = np.random.default_rng(2).normal(size=(n // 4, 6))
    rows = np.repeat(rows / np.linalg.norm(rows, axis=1)[:, None], 4, axis=0)
    return rows @ rows.T


def semicircle(n):
    noise = np.random.default_rng(3).normal(size=(n, n))
    return (noise + noise.T) / np.sqrt(2.0)


SPECTRA = {
    "well separated": with_spectrum(np.append(np.arange(20.0, 0.0, -1.0), -np.linspace(0, 5, 140))),
    "clustered": with_spectrum(np.append(10.0 - 1e-9 * np.arange(15), -np.linspace(0, 3, 145))),
    "degenerate": with_spectrum(np.append(np.repeat([7.0, 5.0, 2.0], 6), np.zeros(142))),
    "rank deficient": with_spectrum(np.append(np.linspace(9, 8, 4), np.zeros(156))),
    "duplicate records": duplicated_records(160),
    "all negative": with_spectrum(-(np.linspace(1.0, 30.0, 160) ** 2)),
    "semicircle edge": semicircle(160),
    "identity": np.eye(160),
    "zero": np.zeros((160, 160)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_agrees_with_lapack(name):
    array = SPECTRA[name]
    algebra, counted = ArrayPanels(160), CountedProducts(Matrix(array))
    pairs = top_eigenpairs(counted, algebra, 16, tolerance=1e-8)
    exact = np.linalg.eigvalsh(array)[::-1]
    size = max(np.abs(exact).max(), 1.0)
    np.testing.assert_allclose(pairs.values[:16], exact[:16], atol=1e-10 * size)
    vectors = pairs.vectors[:, :16]
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(16), atol=1e-12)
    np.testing.assert_allclose(array @ vectors, vectors * pairs.values[:16], atol=2e-8 * size)
    assert counted.products <= 120


@settings(deadline=None, max_examples=20)
@given(n=st.integers(1, 40), wanted=st.integers(1, 50), seed=st.integers(0, 100))
def test_small_matrices_and_more_pairs_than_there_are(n, wanted, seed):
    array = np.random.default_rng(seed).integers(-2, 3, size=(n, n)).astype(float)
    array = array + array.T
    pairs = top_eigenpairs(Matrix(array), ArrayPanels(n), wanted, tolerance=1e-9)
    kept = min(n, wanted)
    exact = np.linalg.eigvalsh(array)[::-1][:kept]
    np.testing.assert_allclose(pairs.values[:kept], exact, atol=1e-9 * max(n, 1))


def test_another_diagonal_is_read_without_a_product():
    array, dual = SPECTRA["semicircle edge"], np.linspace(-1, 1, 160)
    algebra, counted = ArrayPanels(160), CountedProducts(Matrix(array))
    pairs, _ = krylov_start(counted, algebra, np.zeros(160), 160, block=160)
    assert counted.products == 1
    moved = rayleigh_ritz(algebra, pairs.vectors, pairs.image, dual, pairs.lower)
    assert counted.products == 1
    exact = np.linalg.eigvalsh(array + np.diag(dual))[::-1]
    np.testing.assert_allclose(moved.values, exact, atol=1e-11)
    np.testing.assert_allclose(residual_norms(algebra, moved, dual, 20), 0.0, atol=1e-11)


def test_a_warm_start_saves_products():
    array = SPECTRA["semicircle edge"]
    algebra = ArrayPanels(160)
    cold = CountedProducts(Matrix(array))
    pairs = top_eigenpairs(cold, algebra, 12, tolerance=1e-6)
    nearby = array + 1e-3 * np.diag(np.linspace(-1, 1, 160))
    warm = CountedProducts(Matrix(nearby))
    top_eigenpairs(warm, algebra, 12, tolerance=1e-6, start=pairs)
    assert warm.products <= cold.products // 2


def test_single_precision_panels_reach_single_precision():
    array = SPECTRA["well separated"].astype(np.float32)
    operator = Matrix(array)
    operator.array = array
    pairs = top_eigenpairs(operator, ArrayPanels(160, np.float32), 12, tolerance=1e-5)
    assert pairs.vectors.dtype == np.float32
    np.testing.assert_allclose(pairs.values[:12], np.arange(20.0, 8.0, -1.0), atol=1e-4)


def test_a_subspace_grows_by_extra_columns():
    array = SPECTRA["well separated"]
    algebra, zero = ArrayPanels(160), np.zeros(160)
    pairs, _ = krylov_start(Matrix(array), algebra, zero, 10)
    grown = refine(Matrix(array), algebra, pairs, zero, 8, extra=algebra.start(10, first=99))
    assert grown.values.size == 20
    for _ in range(6):
        grown = refine(Matrix(array), algebra, grown, zero, 8)
    np.testing.assert_allclose(grown.values[:15], np.arange(20.0, 5.0, -1.0), atol=1e-5)
    np.testing.assert_array_equal(leading(algebra, grown, 5).values, grown.values[:5])


def test_ritz_values_are_those_of_the_pairs_at_any_dual_vector():
    array = SPECTRA["semicircle edge"]
    algebra, zero = ArrayPanels(160), np.zeros(160)
    pairs, _ = krylov_start(Matrix(array), algebra, zero, 30)
    dual = np.linspace(-1.0, 2.0, 160)
    read = rayleigh_ritz(algebra, pairs.vectors, pairs.image, dual, pairs.lower)
    values = ritz_values(algebra, pairs.vectors, pairs.image, dual)
    np.testing.assert_allclose(values, read.values, atol=1e-12 * abs(read.values[0]))


def test_a_filter_whose_interval_falls_short_recovers():
    # The first bound from below is far inside the spectrum: the filter blows up what lies beyond,
    # and the Rayleigh–Ritz step reads the bound off it.
    array = SPECTRA["semicircle edge"]
    algebra, zero = ArrayPanels(160), np.zeros(160)
    # After two products it is in the subspace; later, rounding alone would bring it in.
    pairs, _ = krylov_start(Matrix(array), algebra, zero, 30, depth=2)
    short = type(pairs)(pairs.values, pairs.vectors, pairs.image, 0.5 * pairs.lower)
    for _ in range(12):
        short = refine(Matrix(array), algebra, short, zero, 8)
    exact = np.linalg.eigvalsh(array)[::-1]
    assert short.lower < 0.95 * exact[-1]
    np.testing.assert_allclose(short.values[:10], exact[:10], rtol=1e-6)


@pytest.mark.parametrize("lower", [1.0, 0.5])
def test_filtering_the_wanted_pairs_alone_finds_them_with_fewer_columns(lower):
    array = SPECTRA["semicircle edge"]
    algebra, zero = ArrayPanels(160), np.zeros(160)
    start, _ = krylov_start(Matrix(array), algebra, zero, 40, depth=3)
    # A bound from below that falls short must be found as well.
    start = type(start)(start.values, start.vectors, start.image, lower * start.lower)
    exact = np.linalg.eigvalsh(array)[::-1]

    def after(wanted):
        counted, pairs = CountedProducts(Matrix(array)), start
        for _ in range(6):
            pairs = refine(counted, algebra, pairs, zero, 6, wanted=wanted)
        return pairs, counted

    (every, all_columns), (few, few_columns) = after(None), after(12)
    assert few_columns.products <= 6 * 6
    assert few_columns.columns <= 0.4 * all_columns.columns
    assert few.values.size == every.values.size == 40
    for pairs in (every, few):
        np.testing.assert_allclose(pairs.values[:10], exact[:10], rtol=1e-7)
        np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(40), atol=1e-12)
        np.testing.assert_allclose(array @ pairs.vectors, pairs.image, atol=1e-11)


def test_a_subspace_that_has_converged_is_made_anew():
    array = SPECTRA["semicircle edge"]
    algebra, zero = ArrayPanels(160), np.zeros(160)
    pairs, _ = krylov_start(Matrix(array), algebra, zero, 40)
    for _ in range(20):
        pairs = refine(Matrix(array), algebra, pairs, zero, 6, wanted=12)
    # Its image, and with it every Ritz value, has the error of one product and not of twenty.
    np.testing.assert_allclose(array @ pairs.vectors, pairs.image, atol=1e-13)
    np.testing.assert_allclose(pairs.values[:12], np.linalg.eigvalsh(array)[:-13:-1], rtol=1e-13)


@settings(deadline=None)
@given(cut=st.floats(-0.9, 0.9), above=st.floats(1e-3, 1.0), gain=st.floats(1.5, 100.0))
def test_the_degree_of_a_gain_is_the_least_one(cut, above, gain):
    pairs = RitzPairs(np.array([2.0]), np.empty((1, 1)), np.empty((1, 1)), -1.0)
    degree = degree_of_gain(pairs, cut + above, cut, gain)

    def amplified(degree):
        centre, half = 0.5 * (cut - 1.0), 0.5 * (cut + 1.0)
        return np.cosh(degree * np.arccosh((cut + above - centre) / half))

    assert amplified(degree) >= gain * (1 - 1e-6)
    assert amplified(degree - 1) < gain * (1 + 1e-6)


def test_lanczos_quadrature_knows_the_spectral_density():
    n = 400
    array = semicircle(n) / np.sqrt(n)
    _, density = krylov_start(Matrix(array), ArrayPanels(n), np.zeros(n), 1, block=16, depth=8)
    exact = np.linalg.eigvalsh(array)
    assert density.weights.sum() == pytest.approx(n)
    assert density.sum_of_squares == pytest.approx(np.sum(exact**2), rel=0.05)
    assert density.mass_above(1.0) == pytest.approx(np.sum(exact > 1.0), abs=0.1 * n)
    rest = density.below(50)
    assert rest.weights.sum() == pytest.approx(n - 50)
    assert rest.nodes.max() <= np.sort(exact)[-50] + 0.2
    moved = rest.matched(123.0, 0.0, 0.9)
    assert moved.weights @ moved.nodes <= 123.0 + 1e-9
    assert moved.nodes.max() <= 0.9


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=12), trace=st.floats(0.1, 20))
def test_the_shift_gives_the_trace(values, trace):
    nodes = np.sort(values)[::-1]
    density = SpectralDensity(nodes, np.full(nodes.size, 2.0))
    shift = density.shift_for_trace(trace)
    assert 2.0 * np.maximum(nodes + shift, 0.0).sum() == pytest.approx(trace)
