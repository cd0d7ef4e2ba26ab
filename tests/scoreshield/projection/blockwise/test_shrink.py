"""Shrinkage: the blockwise form against the dense one, and both against the clean Gram matrix."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.blockwise.shrink import HandoverState, shrink_blockwise
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.dense.shrink import (
    EXACT_RULE,
    SPIKED_RULE,
    eigenvalue_shrinkage,
    signal_threshold,
)
from scoreshield.projection.solution import in_memory

GALLERIES = ["few tight clusters", "many loose clusters", "no structure", "xquad"]
SIGMAS = [0.02, 0.05, 0.2, 1.0, 5.0, 50.0]


def noisy_of(rows, sigma, seed=0):
    n = len(rows)
    noise = np.triu(np.random.default_rng(seed).normal(size=(n, n)), 1) * sigma
    return DenseOperator(rows @ rows.T + noise + noise.T)


def blockwise(operator, sigma, **parameters):
    return shrink_blockwise(operator, ArrayPanels(operator.n), sigma=sigma, **parameters)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("name", GALLERIES)
def test_never_worse_than_the_exact_projection_or_the_identity(galleries, name, sigma):
    if name not in galleries:
        pytest.skip("the folder shared/data/xquad-en is not beside the project")
    rows = galleries[name]
    clean, operator = rows @ rows.T, noisy_of(rows, sigma)
    result = eigenvalue_shrinkage(operator, sigma=sigma)
    error = np.linalg.norm(result.gram() - clean)
    exact = nearest_correlation(operator, tolerance=1e-4, max_iterations=40)
    assert error <= 1.02 * np.linalg.norm(exact.gram() - clean)
    assert error <= 1.02 * np.linalg.norm(np.eye(len(rows)) - clean)


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.2, 1.0, 50.0])
@pytest.mark.parametrize("name", ["few tight clusters", "no structure"])
def test_blockwise_agrees_with_the_dense_form(galleries, name, sigma):
    operator = noisy_of(galleries[name], sigma)
    dense = eigenvalue_shrinkage(operator, sigma=sigma)
    solution = blockwise(operator, sigma)
    assert solution.converged
    assert solution.parameters["rule"] == dense.parameters["rule"]
    assert abs(solution.rank - dense.rank) <= 1
    gram = in_memory(solution).gram()
    assert np.linalg.norm(gram - dense.gram()) <= 2e-3 * np.linalg.norm(dense.gram())
    assert solution.products <= 80
    assert solution.diagonal.min() >= 0.0


def test_many_weak_eigenvalues_hand_over_to_the_exact_projection(galleries):
    rows = galleries["no structure"]
    weak = eigenvalue_shrinkage(noisy_of(rows, 0.02), sigma=0.02)
    assert weak.parameters["rule"] == EXACT_RULE
    assert weak.parameters["risk_exact_projection"] < weak.parameters["risk_spiked_model"]
    assert weak.method == "shrink"
    strong = eigenvalue_shrinkage(noisy_of(rows, 1.0), sigma=1.0)
    assert strong.parameters["rule"] == SPIKED_RULE


def test_pure_noise_stays_below_the_threshold():
    # The bare edge is exceeded by the largest eigenvalue of about one in six such matrices.
    n, sigma = 120, 1.5
    above = 0
    for seed in range(60):
        noise = np.triu(np.random.default_rng(seed).normal(size=(n, n)), 1) * sigma
        top = np.linalg.eigvalsh(noise + noise.T)[-1]
        above += top > signal_threshold(n, sigma)
    assert above <= 3


def test_no_spike_is_the_identity():
    operator = noisy_of(np.eye(200)[:, :50] + 0.1, 30.0)
    solution = blockwise(operator, 30.0)
    assert solution.rank == 0
    np.testing.assert_array_equal(in_memory(solution).gram(), np.eye(200))


def test_any_step_can_be_resumed(galleries):
    operator = noisy_of(galleries["few tight clusters"], 0.2)
    states = []
    whole = blockwise(operator, 0.2, tolerance=1e-9, checkpoint=states.append)
    assert len(states) >= 3
    for state in states:
        stored = pickle.loads(pickle.dumps(state))  # noqa: S301
        resumed = blockwise(operator, 0.2, tolerance=1e-9, resume_from=stored)
        np.testing.assert_allclose(
            in_memory(resumed).gram(), in_memory(whole).gram(), rtol=0, atol=1e-8
        )
        assert resumed.products == whole.products
        assert tuple(resumed.history) == tuple(whole.history)


def test_the_exact_projection_that_takes_over_can_be_resumed_in_any_step(galleries):
    operator = noisy_of(galleries["no structure"], 0.02)
    states, told = [], []
    whole = blockwise(operator, 0.02, checkpoint=states.append, progress=told.append)
    assert whole.parameters["rule"] == EXACT_RULE
    handed = [state for state in states if isinstance(state, HandoverState)]
    assert len(handed) >= 3
    assert len(states) == len(told) == len(whole.history)
    assert [step.number for step in told] == list(range(1, len(told) + 1))
    for state in handed:
        stored = pickle.loads(pickle.dumps(state))  # noqa: S301
        resumed = blockwise(operator, 0.02, resume_from=stored)
        np.testing.assert_array_equal(resumed.factor, whole.factor)
        assert tuple(resumed.history) == tuple(whole.history)
        assert resumed.products == whole.products


def test_running_out_of_steps_is_said(galleries):
    solution = blockwise(
        noisy_of(galleries["few tight clusters"], 1.0), 1.0, tolerance=1e-13, max_iterations=1
    )
    assert not solution.converged
    assert len(solution.history) == 1


def test_senseless_parameters_are_refused():
    with pytest.raises(ParameterError, match="sigma is -1"):
        blockwise(DenseOperator(np.eye(3)), -1.0)
    with pytest.raises(ParameterError, match="tolerance is 0"):
        blockwise(DenseOperator(np.eye(3)), 1.0, tolerance=0.0)
