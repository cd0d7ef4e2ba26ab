"""The exact projection in memory, with its middle steps in single precision."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator, project
from scoreshield.projection.blockwise.nearest import DualNewton, nearest_blockwise
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.blockwise.single_precision import (
    HANDOVER_RESIDUAL,
    LARGEST_ROUNDING,
    MOST_IDLE_STEPS,
    ROUNDED_RESIDUAL,
    SinglePrecision,
    _gains,
    _rounding,
    nearest_in_memory,
)
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.solution import in_memory

EPS = float(np.finfo(np.float32).eps)


class ProductsOnly:
    """A matrix in memory that shows nothing but its products."""

    def __init__(self, array):
        self._array, self.n, self.diagonal = array, len(array), np.ones(len(array))

    def matmat(self, W):
        return self._array @ W


def mixed(array, tolerance=1e-6, max_iterations=100, **parameters):
    return nearest_in_memory(
        DenseOperator(array), tolerance=tolerance, max_iterations=max_iterations, **parameters
    )


def all_double(array, tolerance=1e-6):
    return nearest_blockwise(DenseOperator(array), ArrayPanels(len(array)), tolerance=tolerance)


def single_steps(solution):
    return solution.parameters["single_precision_iterations"]


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0, 100.0])
def test_most_steps_are_single_and_the_answer_is_that_of_double(noisy_gram, sigma):
    operator = DenseOperator(noisy_gram(500, sigma, d=32))
    exact = nearest_correlation(operator, tolerance=1e-10).gram()
    solution, double = mixed(operator.array), all_double(operator.array)
    assert solution.converged
    assert 2 * single_steps(solution) >= len(solution.history) - 1
    assert solution.products <= double.products + 15
    for each in (double, solution):
        distance = np.linalg.norm(in_memory(each).gram() - exact)
        assert distance <= 5e-6 * np.linalg.norm(exact)
        assert distance <= 1.001 * each.certificate.distance_bound + 1e-7
    assert solution.certificate.relative_gap <= 1e-6
    assert solution.factor.dtype == np.float64


def test_known_inputs_far_below_what_single_precision_can_tell(known_inputs):
    for name, array in known_inputs.items():
        exact = nearest_correlation(DenseOperator(array))
        found = in_memory(mixed(array, tolerance=1e-9))
        np.testing.assert_allclose(found.gram(), exact.gram(), atol=1e-7, err_msg=name)


def test_a_tolerance_far_below_single_precision_is_reached(noisy_gram):
    solution = mixed(noisy_gram(300, 1.0), tolerance=1e-12)
    assert solution.converged
    assert single_steps(solution) > 0
    assert solution.history[-1].residual <= 1e-12


def test_single_precision_ends_at_the_tolerance_and_double_confirms_it(noisy_gram):
    tolerance = 100.0 * HANDOVER_RESIDUAL
    solution = mixed(noisy_gram(300, 1.0), tolerance=tolerance)
    assert solution.converged
    residuals = [step.residual for step in solution.history]
    assert all(residual > tolerance for residual in residuals[: single_steps(solution)])
    assert max(residuals[single_steps(solution) :]) <= tolerance


def test_what_is_taken_over_is_read_in_double_precision(noisy_gram):
    array = DenseOperator(noisy_gram(200, 1.0)).array
    single = DualNewton(SinglePrecision(array), ArrayPanels(200, np.float32))
    state = single.step(single.start(None))
    solver = DualNewton(DenseOperator(array), ArrayPanels(200))
    taken = solver.taken_over(state, state.pairs.vectors.astype(np.float64))
    vectors = taken.pairs.vectors
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-13)
    np.testing.assert_allclose(taken.pairs.image, array @ vectors, atol=1e-12)
    kept = np.maximum(taken.pairs.values, 0.0)
    gradient = ((vectors * kept) * vectors).sum(axis=1) - 1.0
    assert taken.residual == pytest.approx(np.sqrt(np.mean(gradient**2)), rel=1e-12)
    np.testing.assert_array_equal(taken.dual, state.dual)
    assert taken.history[:-1] == state.history
    assert taken.products == state.products + 1
    assert taken.columns == state.columns + vectors.shape[1]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_every_iteration_is_reported_once_and_counted(noisy_gram, limit):
    reported = []
    solution = mixed(noisy_gram(300, 1.0), max_iterations=limit, progress=reported.append)
    assert reported == list(solution.history)
    assert [step.number for step in reported] == list(range(1, len(reported) + 1))
    assert len(reported) == limit or solution.converged
    products = [step.products for step in reported]
    if limit < 3:
        assert single_steps(solution) == 0
    else:
        # The handover alone costs one product.
        costs = [after - before for before, after in pairwise(products)]
        assert costs.index(1) == single_steps(solution) > 0
    assert solution.products > products[-1]


def test_a_step_is_reported_before_the_next_one_is_made(noisy_gram, monkeypatch):
    """A caller who has seen enough ends the iteration there."""

    class EnoughError(Exception):
        pass

    def stop(step):
        if step.number == 2:
            raise EnoughError(step.products)

    array = noisy_gram(300, 1.0)
    reported = []
    mixed(array, progress=reported.append)
    made = []
    multiply = SinglePrecision.matmat
    monkeypatch.setattr(
        SinglePrecision, "matmat", lambda self, W: made.append(W) or multiply(self, W)
    )
    with pytest.raises(EnoughError):
        mixed(array, progress=stop)
    assert len(made) == reported[1].products - reported[0].products


@pytest.mark.parametrize(
    "array",
    [
        np.ones((90, 90)),
        np.kron(np.eye(30), np.ones((3, 3))),
        -1e5 * np.outer(*2 * [np.where(np.arange(90) % 3, 1.0, -1.0)]),
        np.kron(np.eye(45), [[0.0, 1e7], [1e7, 0.0]]),
        np.array([[1.0, -1e8], [-1e8, 1.0]]),
        -1e8 * np.ones((10, 10)),
    ],
    ids=["constant", "duplicates", "one negative", "pairs", "two records", "ten records"],
)
def test_a_start_that_double_precision_has_exact_is_left_to_it(array):
    solution, double = mixed(array), all_double(array)
    assert single_steps(solution) == 0
    assert solution.converged
    assert solution.products == double.products
    np.testing.assert_array_equal(in_memory(solution).gram(), in_memory(double).gram())


def test_noise_that_rounds_to_more_than_the_tolerance(noisy_gram):
    """Without a rule for it all iterations went by in single precision."""
    solution = mixed(noisy_gram(120, 1e3))
    assert solution.converged
    assert 0 < single_steps(solution) < len(solution.history) - 2


def state_with(residuals, largest=1.0, lower=0.0):
    pairs = SimpleNamespace(values=np.array([largest, 0.0]), lower=lower)
    return SimpleNamespace(pairs=pairs, history=[SimpleNamespace(residual=r) for r in residuals])


def test_when_one_more_step_in_single_precision_is_of_use():
    above = 2.0 * HANDOVER_RESIDUAL
    assert _gains(state_with([1.0, above]), 1e-9, 100)
    assert not _gains(state_with([1.0, 0.5 * HANDOVER_RESIDUAL]), 1e-9, 100)
    assert not _gains(state_with([1.0, above]), 3.0 * HANDOVER_RESIDUAL, 100)
    assert not _gains(state_with([1.0, above]), 1e-9, 3)
    assert _gains(state_with([1.0, above]), 1e-9, 4)
    idle = [1.0, above, *(MOST_IDLE_STEPS * [2.0 * above])]
    assert _gains(state_with(idle[:-1]), 1e-9, 100)
    assert not _gains(state_with(idle), 1e-9, 100)
    rounded = above / (ROUNDED_RESIDUAL * EPS)
    for largest, lower in ((1.0, -1.01 * rounded), (1.01 * rounded, 0.0)):
        assert not _gains(state_with([1.0, above], largest, lower), 1e-9, 100)


def test_rounding_is_that_of_the_eigenvalue_farthest_from_zero():
    assert _rounding(state_with([], 3.0, -5.0)) == 5.0 * EPS
    assert _rounding(state_with([], 7.0, -5.0)) == 7.0 * EPS
    assert LARGEST_ROUNDING < 1.0


def test_products_alone_offer_no_single_precision(noisy_gram):
    solution = nearest_in_memory(
        ProductsOnly(noisy_gram(200, 1.0)), tolerance=1e-6, max_iterations=100
    )
    assert solution.converged
    assert single_steps(solution) == 0


@pytest.mark.parametrize("wrong", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_parameters_outside_their_domain_are_refused_before_any_product(wrong, monkeypatch):
    def forbidden(self, W):
        raise AssertionError("a product was made")

    monkeypatch.setattr(DenseOperator, "matmat", forbidden)
    with pytest.raises(ParameterError):
        mixed(np.eye(3), **wrong)


def test_products_are_those_of_the_array_in_single_precision(noisy_gram):
    array = noisy_gram(50, 1.0)
    panel = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    product = SinglePrecision(array).matmat(panel)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, array @ panel, rtol=1e-4, atol=1e-4)


def test_project_says_how_many_steps_were_single(noisy_gram):
    projection = project(noisy_gram(300, 1.0), method="nearest", form="blockwise")
    assert 0 < projection.parameters["single_precision_iterations"] < projection.iterations
