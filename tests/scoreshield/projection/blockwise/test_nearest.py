"""The product-only exact projection against the dense one and against closed forms."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.blockwise.coupled_jacobian import CoupledJacobian
from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.nearest import (
    DualNewton,
    nearest_blockwise,
)
from scoreshield.projection.blockwise.panels import ArrayPanels, orthonormalise
from scoreshield.projection.blockwise.subspace import krylov_start, leading
from scoreshield.projection.dense.nearest import GeneralisedJacobian, nearest_correlation
from scoreshield.projection.solution import in_memory


def blockwise(array, **parameters):
    return nearest_blockwise(DenseOperator(array), ArrayPanels(len(array)), **parameters)


def relative_difference(solution, exact):
    return np.linalg.norm(in_memory(solution).gram() - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("sigma", "products"),
    [(0.1, 60), (1.0, 80), (10.0, 120), (100.0, 150), (1000.0, 200)],
)
def test_same_answer_as_the_dense_form_from_spikes_to_pure_noise(noisy_gram, sigma, products):
    noisy = noisy_gram(600, sigma, d=32)
    exact = nearest_correlation(DenseOperator(noisy), tolerance=1e-8)
    solution = blockwise(noisy)
    assert solution.converged
    assert relative_difference(solution, exact.gram()) <= 1e-4
    assert solution.products <= products
    certificate = solution.certificate
    assert certificate.diagonal_residual <= 1e-5
    assert certificate.relative_gap <= 1e-4
    # The certificate bounds the true distance.
    distance = np.linalg.norm(in_memory(solution).gram() - exact.gram())
    assert distance <= certificate.distance_bound * 1.001 + 1e-6


def test_known_inputs(known_inputs):
    for name, array in known_inputs.items():
        exact = nearest_correlation(DenseOperator(array))
        solution = blockwise(array, tolerance=1e-9)
        np.testing.assert_allclose(
            in_memory(solution).gram(), exact.gram(), atol=1e-7, err_msg=name
        )


@settings(deadline=None, max_examples=10)
@given(n=st.integers(40, 120), rank=st.integers(1, 5), seed=st.integers(0, 1000))
def test_planted(n, rank, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, rank))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    basis = np.linalg.qr(rows)[0]
    planted = rows @ rows.T - 2.0 * (np.eye(n) - basis @ basis.T) - np.diag(rng.normal(size=n))
    solution = blockwise(planted, tolerance=1e-8)
    assert relative_difference(solution, rows @ rows.T) <= 1e-6


@settings(deadline=None, max_examples=10)
@given(n=st.integers(1, 90), rho=st.floats(-5.0, 5.0))
def test_equicorrelation(n, rho):
    answer = np.full((n, n), np.clip(rho, -1.0 / max(n - 1, 1), 1.0))
    np.fill_diagonal(answer, 1.0)
    result = in_memory(blockwise(np.full((n, n), rho), tolerance=1e-9)).gram()
    np.testing.assert_allclose(result, answer, atol=1e-6)


def test_duplicate_records(clean_gram):
    clean = np.repeat(np.repeat(clean_gram(50, d=8), 4, axis=0), 4, axis=1)
    noise = np.triu(np.random.default_rng(4).normal(size=(200, 200)), 1) * 0.3
    noisy = clean + noise + noise.T
    exact = nearest_correlation(DenseOperator(noisy), tolerance=1e-8).gram()
    assert relative_difference(blockwise(noisy), exact) <= 1e-4


def test_single_precision_panels(noisy_gram):
    noisy = noisy_gram(400, 2.0)
    exact = nearest_correlation(DenseOperator(noisy), tolerance=1e-8).gram()

    class Single:
        n = 400
        array = DenseOperator(noisy).array.astype(np.float32)

        def matmat(self, W):
            assert W.dtype == np.float32
            return self.array @ W

    solution = nearest_blockwise(Single(), ArrayPanels(400, np.float32), tolerance=3e-5)
    assert solution.converged
    assert relative_difference(solution, exact) <= 1e-4


def test_any_step_can_be_resumed(noisy_gram):
    noisy, states = noisy_gram(400, 3.0), []
    whole = blockwise(noisy, checkpoint=states.append)
    assert len(states) == len(whole.history) >= 5
    for state in states[::2]:
        stored = pickle.loads(pickle.dumps(state))  # noqa: S301
        resumed = blockwise(noisy, resume_from=stored)
        assert tuple(resumed.history) == tuple(whole.history)
        assert resumed.products == whole.products
        assert resumed.parameters == whole.parameters
        np.testing.assert_array_equal(in_memory(resumed).gram(), in_memory(whole).gram())


def test_a_missed_eigenvector_fails_the_certificate_and_is_taken_up(noisy_gram):
    noisy = noisy_gram(400, 3.0)
    states = []
    whole = blockwise(noisy, checkpoint=states.append)
    state = states[-1]
    solver = DualNewton(DenseOperator(noisy), ArrayPanels(400))
    assert solver.verdict(state).accepted(1e-5)
    # Drop the largest pair: what is left is a smaller P₊(A), whose slack has a large negative end.
    pairs = state.pairs
    crippled = type(pairs)(pairs.values[1:], pairs.vectors[:, 1:], pairs.image[:, 1:], pairs.lower)
    broken = replace(state, pairs=crippled)
    verdict = solver.verdict(broken)
    assert verdict.certificate.dual_smallest_eigenvalue < -0.5 * pairs.values[0]
    assert not verdict.accepted(1e-5)
    resumed = blockwise(noisy, resume_from=broken)
    assert resumed.converged
    assert relative_difference(resumed, in_memory(whole).gram()) <= 2e-5


@pytest.mark.parametrize("sigma", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("columns", [4, 40, 150])
def test_a_senseless_start_costs_products_and_not_the_answer(noisy_gram, sigma, columns):
    noisy, algebra = noisy_gram(400, sigma), ArrayPanels(400)
    poor = orthonormalise(algebra, algebra.start(columns, first=777))
    exact = nearest_correlation(DenseOperator(noisy), tolerance=1e-8).gram()
    solution = nearest_blockwise(DenseOperator(noisy), algebra, subspace=poor)
    assert solution.converged
    assert relative_difference(solution, exact) <= 1e-4


@pytest.mark.parametrize("sigma", [0.1, 3.0, 300.0])
def test_the_last_digits_cost_few_products(noisy_gram, sigma):
    solution = blockwise(noisy_gram(400, sigma), tolerance=1e-12)
    assert solution.converged
    assert solution.products <= 200


def test_never_converged_without_the_steps(noisy_gram):
    solution = blockwise(noisy_gram(300, 3.0), max_iterations=3)
    assert not solution.converged
    assert len(solution.history) == 3
    assert solution.certificate.dual_smallest_eigenvalue is not None


def test_the_jacobian_is_the_dense_one_when_everything_is_kept(noisy_gram):
    array = DenseOperator(noisy_gram(60, 0.5)).array
    algebra, dual = ArrayPanels(60), np.linspace(-4.0, -2.0, 60)
    pairs, _ = krylov_start(DenseOperator(array), algebra, dual, 60, block=60)
    nothing = SpectralDensity(np.empty(0), np.empty(0))
    values, vectors = np.linalg.eigh(array + np.diag(dual))
    spectrum = type("S", (), {})()
    spectrum.values, spectrum.vectors = values, vectors
    spectrum.positive = int(np.sum(values > 0))
    h = np.random.default_rng(0).normal(size=60)
    exact = GeneralisedJacobian(spectrum).product(h)
    np.testing.assert_allclose(
        CoupledJacobian(algebra, pairs, nothing).product(h), exact, atol=1e-12
    )
    # With 30 pairs kept and the density of the others known, it is close.
    kept = leading(algebra, pairs, 30)
    rest = SpectralDensity(pairs.values[30:], np.ones(30))
    close = CoupledJacobian(algebra, kept, rest).product(h)
    assert np.linalg.norm(close - exact) <= 0.1 * np.linalg.norm(exact)


def test_senseless_parameters_are_refused():
    with pytest.raises(ParameterError, match="tolerance is -1"):
        blockwise(np.eye(3), tolerance=-1.0)


@pytest.mark.parametrize("sigma", [0.2, 5.0])
def test_the_stated_dual_eigenvalue_is_an_estimate_with_its_residual(noisy_gram, sigma):
    noisy = noisy_gram(300, sigma, d=32)
    solution = blockwise(noisy, tolerance=1e-4)
    found = solution.certificate.dual_smallest_eigenvalue
    slack = in_memory(solution).gram() - DenseOperator(noisy).array - np.diag(solution.dual)
    values = np.linalg.eigvalsh(slack)
    assert found >= values[0] - 1e-9 * np.abs(values).max()
    residual = solution.parameters["dual_eigenvalue_residual"]
    assert np.abs(values - found).min() <= residual + 1e-9 * np.abs(values).max()
    assert residual < 0.2 * np.abs(values).max()
    assert "upper bound" in solution.parameters["dual_eigenvalue"]
