"""The exact projection against published answers, closed forms and a slow independent method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator, project
from scoreshield.projection.dense.eigen import full_spectrum
from scoreshield.projection.dense.nearest import GeneralisedJacobian, nearest_correlation


def nearest(array, **parameters):
    return nearest_correlation(DenseOperator(array), **parameters)


def unit_diagonal(array):
    result = np.array(array, dtype=float)
    np.fill_diagonal(result, 1.0)
    return result


def dykstra(array, steps):
    """Alternating projections with Dykstra's correction (Higham 2002, algorithm 3.3)."""
    Y, correction = unit_diagonal(array), np.zeros_like(array)
    for _ in range(steps):
        R = Y - correction
        values, vectors = np.linalg.eigh(R)
        X = (vectors * np.maximum(values, 0.0)) @ vectors.T
        correction = X - R
        Y = unit_diagonal(X)
    return Y


def test_higham_2002(known_inputs):
    answer = np.array(
        [[1, 0.76068985, 0.15729811], [0.76068985, 1, 0.76068985], [0.15729811, 0.76068985, 1]]
    )
    result = nearest(known_inputs["higham"])
    np.testing.assert_allclose(result.gram(), answer, rtol=0, atol=1e-8)
    distance = np.linalg.norm(result.gram() - known_inputs["higham"])
    assert distance == pytest.approx(0.527790463582, abs=1e-11)
    assert result.rank == 2


def test_nag_g02aa(known_inputs):
    a, b, c, d = -0.8084125, 0.1915875, 0.10677505, -0.65623269
    answer = np.array([[1, a, b, c], [a, 1, d, b], [b, d, 1, a], [c, b, a, 1]])
    result = nearest(known_inputs["nag"])
    np.testing.assert_allclose(result.gram(), answer, rtol=0, atol=1e-8)
    distance = np.linalg.norm(result.gram() - known_inputs["nag"])
    assert distance == pytest.approx(2.133729108709, abs=1e-11)


@settings(deadline=None)
@given(n=st.integers(1, 40), rho=st.floats(-50.0, 50.0))
def test_equicorrelation(n, rho):
    result = nearest(np.full((n, n), rho))
    answer = unit_diagonal(np.full((n, n), np.clip(rho, -1 / max(n - 1, 1), 1.0)))
    assert result.converged
    np.testing.assert_allclose(result.gram(), answer, rtol=0, atol=1e-8)


@settings(deadline=None)
@given(
    n=st.integers(1, 25),
    rank_share=st.floats(0.0, 1.0),
    mu=st.floats(0.1, 100.0),
    dual_size=st.floats(0.0, 10.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_planted_answer_and_dual(n, rank_share, mu, dual_size, seed):
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(n, 1 + round(rank_share * (n - 1))))
    F /= np.linalg.norm(F, axis=1)[:, None]
    Q = np.linalg.qr(F)[0]
    y = dual_size * rng.normal(size=n)
    G = F @ F.T - mu * (np.eye(n) - Q @ Q.T) - np.diag(y)
    result = nearest(G)
    assert result.converged
    np.testing.assert_allclose(result.gram(), unit_diagonal(F @ F.T), rtol=0, atol=1e-8)
    # The diagonal of G is taken as 1; what that adds to it the dual vector gives back.
    np.testing.assert_allclose(result.dual, y + np.diag(G) - 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
def test_agrees_with_dykstra(noisy_gram, sigma):
    noisy = noisy_gram(10, sigma, d=4)
    answer = dykstra(noisy, 6000)
    np.testing.assert_allclose(nearest(noisy).gram(), answer, rtol=0, atol=1e-7)


@pytest.mark.parametrize("noise_norm", [0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4])
def test_every_noise_level_converges_with_a_certificate(noisy_gram, noise_norm):
    n = 100
    result = nearest(noisy_gram(n, noise_norm / np.sqrt(n)))
    assert result.converged
    assert result.history[-1].residual <= 1e-10
    assert result.history[-1].eigendecompositions <= 40
    assert 0.0 <= result.certificate.relative_gap <= 1e-10
    assert result.certificate.dual_smallest_eigenvalue >= -1e-9 * (1.0 + noise_norm)
    assert result.certificate.distance_bound <= 1e-5 * (1.0 + noise_norm)


def test_no_feasible_matrix_nearby_is_closer(noisy_gram):
    # Optimality by definition, needing no dual: ⟨G − X*, Z − X*⟩ ≤ 0 for every feasible Z.
    noisy = unit_diagonal(noisy_gram(30, 0.7))
    X = nearest(noisy).gram()
    for seed in range(20):
        rows = np.random.default_rng(seed).normal(size=(30, 3))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        assert np.sum((noisy - X) * (rows @ rows.T - X)) <= 1e-8


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((50, 50)),
        np.eye(50),
        -np.ones((50, 50)),
        1e4 * np.ones((50, 50)),
        np.kron(np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]]), np.ones((5, 5))),
        np.eye(50) + 1e4 * (np.eye(50, k=49) + np.eye(50, k=-49)),
        np.diag(np.linspace(-3, 3, 50)),
        np.array([[1.0, 1e4], [1e4, 1.0]]),
        np.array([[0.0, -1e-9], [-1e-9, -5.0]]),
    ],
    ids=["zero", "identity", "minus", "huge", "duplicates", "pair", "diagonal", "two", "tiny"],
)
def test_degenerate_inputs_converge(array):
    result = nearest(array)
    assert result.converged
    assert result.certificate.relative_gap <= 1e-10


def test_rows_of_very_different_noise_converge_in_few_products(noisy_gram, monkeypatch):
    products = []

    class CountedJacobian(GeneralisedJacobian):
        def product(self, h):
            products.append(h.size)
            return super().product(h)

    monkeypatch.setattr("scoreshield.projection.dense.nearest.GeneralisedJacobian", CountedJacobian)
    scale = np.logspace(-3, 1.5, 60)
    result = nearest(noisy_gram(60, 1.0) * np.outer(scale, scale))
    assert result.converged
    assert result.certificate.relative_gap <= 1e-10
    # 112 with the diagonal preconditioner, 297 without.
    assert 10 <= len(products) <= 180


def test_the_diagonal_of_the_input_does_not_matter(noisy_gram):
    noisy = noisy_gram(25, 0.5)
    other = noisy + np.diag(np.linspace(-9, 9, 25))
    np.testing.assert_array_equal(nearest(noisy).gram(), nearest(other).gram())


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.01, 5.0))
def test_permutations_and_sign_flips_carry_over(noisy_gram, seed, sigma):
    rng = np.random.default_rng(seed)
    noisy = noisy_gram(15, sigma, seed=seed % 1000)
    order, signs = rng.permutation(15), rng.choice([-1.0, 1.0], size=15)
    turned = (noisy * np.outer(signs, signs))[np.ix_(order, order)]
    expected = (nearest(noisy).gram() * np.outer(signs, signs))[np.ix_(order, order)]
    np.testing.assert_allclose(nearest(turned).gram(), expected, rtol=0, atol=1e-8)


def test_projecting_twice_changes_nothing(noisy_gram):
    once = nearest(noisy_gram(60, 0.8)).gram()
    twice = nearest(once)
    np.testing.assert_allclose(twice.gram(), once, rtol=0, atol=1e-9)


def test_convergence_is_quadratic_at_the_end(noisy_gram):
    residuals = [step.residual for step in nearest(noisy_gram(200, 0.5)).history]
    assert len(residuals) <= 8
    assert residuals[-1] <= 30 * residuals[-2] ** 1.7


@pytest.mark.parametrize("shift", [-8.0, 0.0, 8.0])
def test_the_jacobian_is_the_derivative(noisy_gram, shift):
    # Both sides of the spectrum in turn are the smaller one.
    A = noisy_gram(30, 0.7) + shift * np.eye(30)
    jacobian = GeneralisedJacobian(full_spectrum(A))
    h = np.random.default_rng(2).normal(size=30)
    step = 1e-5
    forward, backward = (
        full_spectrum(A + s * step * np.diag(h)).positive_diagonal() for s in (1, -1)
    )
    np.testing.assert_allclose(jacobian.product(h), (forward - backward) / (2 * step), atol=1e-6)
    explicit = np.column_stack([jacobian.product(e) for e in np.eye(30)])
    np.testing.assert_allclose(jacobian.diagonal(), np.diag(explicit), atol=1e-12)


def test_running_out_of_steps_is_not_called_converged(noisy_gram):
    result = nearest(noisy_gram(50, 1.0), max_iterations=2, tolerance=1e-12)
    assert result.iterations == 2
    assert not result.converged
    assert result.feasible


def test_an_unreachable_tolerance_ends_unconverged_without_a_long_search(noisy_gram, monkeypatch):
    decompositions = []

    def counted(matrix):
        decompositions.append(matrix.shape)
        return full_spectrum(matrix)

    monkeypatch.setattr("scoreshield.projection.dense.nearest.full_spectrum", counted)
    result = nearest(noisy_gram(50, 100.0), tolerance=1e-30)
    assert not result.converged
    assert result.history[-1].residual <= 1e-10
    assert len(decompositions) <= result.history[-1].eigendecompositions + 3


def test_a_rank_is_refused(noisy_gram):
    with pytest.raises(ParameterError, match="rank 3 was given"):
        project(noisy_gram(10, 0.1), method="nearest", rank=3)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_tolerance_is_refused(tolerance):
    with pytest.raises(ParameterError, match="tolerance is"):
        nearest(np.eye(2), tolerance=tolerance)
