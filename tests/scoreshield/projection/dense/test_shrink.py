"""Optimal eigenvalue shrinkage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.dense.shrink import (
    SpikeModel,
    eigenvalue_shrinkage,
    noise_edge,
    shrunk,
    signal_threshold,
)


def shrink(array, sigma, **parameters):
    return eigenvalue_shrinkage(DenseOperator(array), sigma=sigma, **parameters)


def test_nothing_above_the_noise_edge_gives_the_identity(noisy_gram):
    # Every eigenvalue of the clean matrix is about n/d = 4, far below σ√n = 400.
    result = shrink(noisy_gram(64, 50.0), 80.0)
    assert result.rank == 0
    np.testing.assert_array_equal(result.gram(), np.eye(64))
    np.testing.assert_array_equal(result.diagonal, 1.0)


def test_without_noise_a_feasible_matrix_is_kept(clean_gram):
    clean = clean_gram(50, d=8)
    result = shrink(clean, 0.0)
    assert result.rank == 8
    np.testing.assert_allclose(result.gram(), clean, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(noise=st.floats(0.0, 100.0), excess=st.floats(1e-3, 1e4))
def test_the_shrunk_eigenvalue_undoes_the_spike_map(noise, excess):
    # s > σ√n appears at λ = s + σ²n/s and is best estimated by s − σ²n/s.
    s = noise + excess
    value = s + noise**2 / s
    result = shrunk(np.array([value]), 2.0 * noise)[0]
    assert result == pytest.approx(s - noise**2 / s, rel=1e-6, abs=1e-4)


def test_the_spike_map_describes_a_noisy_matrix():
    n, sigma = 400, 3.0
    noise = np.triu(np.random.default_rng(0).normal(size=(n, n)), 1) * sigma
    result = shrink(np.ones((n, n)) + noise + noise.T, sigma)
    assert result.rank == 1
    # The lone spike of 𝟙𝟙ᵀ is s = n, so that s − σ²n/s = n − σ².
    top = np.linalg.eigvalsh(np.ones((n, n)) + noise + noise.T)[-1:]
    assert shrunk(top, 2 * sigma * np.sqrt(n))[0] == pytest.approx(n - sigma**2, rel=0.02)


@pytest.mark.parametrize("sigma", [0.2, 1.0])
def test_less_error_than_the_exact_projection_at_moderate_noise(clean_gram, noisy_gram, sigma):
    clean, noisy = clean_gram(300, d=8), noisy_gram(300, sigma, d=8)
    shrunk_error = np.linalg.norm(shrink(noisy, sigma).gram() - clean)
    exact_error = np.linalg.norm(nearest_correlation(DenseOperator(noisy)).gram() - clean)
    assert shrunk_error < 0.95 * exact_error


def test_a_rank_that_covers_the_spikes_changes_nothing(noisy_gram):
    noisy = noisy_gram(120, 0.2, d=6)
    full, truncated = shrink(noisy, 0.2), shrink(noisy, 0.2, rank=20)
    assert truncated.rank == full.rank == 6
    assert (full.parameters["spectrum"], truncated.parameters["spectrum"]) == ("full", "truncated")
    np.testing.assert_allclose(truncated.gram(), full.gram(), rtol=0, atol=1e-10)


def test_what_barely_counts_as_a_spike_changes_next_to_nothing():
    n, sigma = 500, 2.0
    model = SpikeModel(n, sigma, 1, centre=0.7)
    barely = np.array([model.threshold * (1.0 + 1e-6)])
    assert model.images(barely)[0] < 0.005 * model.edge
    # Noise alone whose largest eigenvalue lies just above the threshold.
    noise = np.triu(np.random.default_rng(2).normal(size=(n, n)), 1)
    top = np.linalg.eigvalsh(noise + noise.T)[-1] + 1.0
    quiet = brentq(lambda sigma: signal_threshold(n, sigma, 1.0) - top, 0.1, 10.0) * (1 - 1e-4)
    result = shrink(np.eye(n) + noise + noise.T, quiet)
    assert result.rank == 1
    # With the bare edge in the square root it would be 0.22 of it.
    assert np.linalg.norm(result.gram() - np.eye(n)) <= 0.1 * noise_edge(n, quiet)


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), float("inf")])
def test_a_senseless_sigma_is_refused(sigma):
    with pytest.raises(ParameterError, match="sigma is"):
        shrink(np.eye(3), sigma)


def test_a_senseless_rank_is_refused():
    with pytest.raises(ParameterError, match="rank is 0"):
        shrink(np.eye(3), 0.1, rank=0)
