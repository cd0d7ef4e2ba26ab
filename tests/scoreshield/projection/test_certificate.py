"""Bounds that hold for any feasible matrix and any dual vector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.certificate import (
    certify,
    duality_gap,
    smallest_eigenvalue_bound,
)
from scoreshield.projection.dense.aap import averaged_alternating_projection
from scoreshield.projection.dense.eigen import full_spectrum
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.result import from_factor


def random_feasible(n, r, seed):
    rows = np.random.default_rng(seed).normal(size=(n, r)) / np.sqrt(r)
    return from_factor(rows, method="random", parameters={})


@settings(deadline=None, max_examples=30)
@given(
    sigma=st.floats(0.0, 20.0),
    dual_error=st.floats(0.0, 10.0),
    rank=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_the_bound_holds_for_any_feasible_matrix_and_any_dual(
    noisy_gram, sigma, dual_error, rank, seed
):
    noisy = DenseOperator(noisy_gram(20, sigma, seed=seed)).array
    exact = nearest_correlation(DenseOperator(noisy), tolerance=1e-12)
    candidate = random_feasible(20, rank, seed)
    dual = exact.dual + dual_error * np.random.default_rng(seed).normal(size=20)
    bound = certify(
        candidate.factor, candidate.diagonal, noisy, dual, diagonal_residual=0.0
    ).distance_bound
    assert np.linalg.norm(candidate.gram() - exact.gram()) <= bound + 1e-9


def test_the_gap_is_the_difference_of_primal_and_dual(noisy_gram):
    noisy = DenseOperator(noisy_gram(15, 0.5)).array
    candidate = random_feasible(15, 4, 3)
    y = np.random.default_rng(0).normal(size=15)
    shifted = noisy + np.diag(y)
    positive = np.maximum(np.linalg.eigvalsh(shifted), 0.0)
    primal = 0.5 * np.linalg.norm(candidate.gram() - noisy) ** 2
    dual = y.sum() - 0.5 * positive @ positive + 0.5 * np.linalg.norm(noisy) ** 2
    gap = duality_gap(candidate.factor, candidate.diagonal, full_spectrum(shifted))
    assert gap == pytest.approx(primal - dual, rel=1e-12)


def test_the_gap_does_not_cancel_at_large_noise(noisy_gram):
    # ½‖G‖² is 2e11 here, so the textbook difference is noise below 1e-4.
    noisy = DenseOperator(noisy_gram(60, 1e4)).array
    result = nearest_correlation(DenseOperator(noisy), tolerance=1e-9)
    assert result.certificate.distance_bound**2 / 2 <= 1e-5
    assert result.certificate.distance_bound >= 0.0


def test_the_bound_covers_aap_and_is_not_idle(noisy_gram):
    noisy = DenseOperator(noisy_gram(60, 0.3)).array
    exact = nearest_correlation(DenseOperator(noisy))
    aap = averaged_alternating_projection(DenseOperator(noisy), tolerance=1e-6)
    certificate = certify(
        aap.factor, aap.diagonal, noisy, exact.dual, diagonal_residual=aap.history[-1].residual
    )
    distance = np.linalg.norm(aap.gram() - exact.gram())
    assert distance <= certificate.distance_bound <= 20 * distance


def test_the_exact_projection_is_dual_feasible(noisy_gram):
    noisy = DenseOperator(noisy_gram(60, 0.3)).array
    result = nearest_correlation(DenseOperator(noisy))
    Z = result.gram() - noisy - np.diag(result.dual)
    assert result.certificate.dual_smallest_eigenvalue == pytest.approx(
        np.linalg.eigvalsh(Z)[0], abs=1e-9
    )
    wrong = certify(result.factor, result.diagonal, noisy, result.dual + 1.0, diagonal_residual=0.0)
    assert wrong.dual_smallest_eigenvalue < -0.5


@pytest.mark.parametrize("rank", [1, 3, 30])
def test_the_smallest_eigenvalue_is_bounded(rank):
    candidate = random_feasible(40, rank, 5)
    bound = smallest_eigenvalue_bound(candidate.factor, candidate.diagonal)
    assert bound <= np.linalg.eigvalsh(candidate.gram())[0] + 1e-14
    assert bound >= candidate.diagonal.min() - 1e-10


def test_shapes_that_disagree_are_refused():
    with pytest.raises(ParameterError, match="shapes disagree"):
        certify(np.ones((3, 1)), np.zeros(3), np.eye(4), np.zeros(3), diagonal_residual=0.0)
