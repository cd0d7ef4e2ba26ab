"""The exact projection in memory, begun in single precision and ended in double."""

from __future__ import annotations

import numpy as np
import pytest

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator, project
from scoreshield.projection.nearest import nearest_correlation
from scoreshield.projection.nearest_blockwise import nearest_blockwise
from scoreshield.projection.panels import ArrayPanels
from scoreshield.projection.single_precision import (
    HANDOVER_RESIDUAL,
    SinglePrecision,
    nearest_in_memory,
)
from scoreshield.projection.solution import in_memory


class ProductsOnly:
    """A matrix in memory that shows nothing but its products."""

    def __init__(self, array):
        self._array, self.n, self.diagonal = array, len(array), np.ones(len(array))

    def matmat(self, W):
        return self._array @ W


def in_both_precisions(array, tolerance=1e-6, max_iterations=100, **parameters):
    return nearest_in_memory(
        DenseOperator(array), tolerance=tolerance, max_iterations=max_iterations, **parameters
    )


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0, 100.0])
def test_most_steps_are_single_and_the_answer_is_that_of_double(noisy_gram, sigma):
    operator = DenseOperator(noisy_gram(500, sigma, d=32))
    exact = nearest_correlation(operator, tolerance=1e-10).gram()
    double = nearest_blockwise(operator, ArrayPanels(500), tolerance=1e-6)
    mixed = in_both_precisions(operator.array)
    assert mixed.converged
    assert 2 * mixed.parameters["single_precision_iterations"] > len(mixed.history)
    assert mixed.products <= double.products + 15
    for solution in (double, mixed):
        distance = np.linalg.norm(in_memory(solution).gram() - exact)
        assert distance <= 5e-6 * np.linalg.norm(exact)
        assert distance <= 1.001 * solution.certificate.distance_bound + 1e-7
    assert mixed.certificate.relative_gap <= 1e-6
    assert mixed.factor.dtype == np.float64


def test_known_inputs_far_below_what_single_precision_can_tell(known_inputs):
    for name, array in known_inputs.items():
        exact = nearest_correlation(DenseOperator(array))
        found = in_memory(in_both_precisions(array, tolerance=1e-9))
        np.testing.assert_allclose(found.gram(), exact.gram(), atol=1e-7, err_msg=name)


def test_a_tolerance_far_below_single_precision_is_reached(noisy_gram):
    solution = in_both_precisions(noisy_gram(300, 1.0), tolerance=1e-12)
    assert solution.converged
    assert solution.history[-1].residual <= 1e-12


def test_a_tolerance_above_the_handover_is_confirmed_in_double_precision(noisy_gram):
    array = noisy_gram(300, 1.0)
    tolerance = 100.0 * HANDOVER_RESIDUAL
    solution = in_both_precisions(array, tolerance=tolerance)
    assert solution.converged
    assert solution.certificate.diagonal_residual <= tolerance
    # The residual that counts is that of P₊(G + Diag(y)) itself, not of its single form.
    values, vectors = np.linalg.eigh(DenseOperator(array).array + np.diag(solution.dual))
    diagonal = ((vectors * np.maximum(values, 0.0)) * vectors).sum(axis=1)
    exact = np.sqrt(np.mean((diagonal - 1.0) ** 2))
    assert exact == pytest.approx(solution.history[-1].residual, rel=0.1)


def test_every_dual_point_is_reported_once(noisy_gram):
    reported = []
    solution = in_both_precisions(noisy_gram(300, 1.0), progress=reported.append)
    assert [step.number for step in reported] == list(range(1, len(solution.history) + 1))
    products = [step.products for step in solution.history]
    assert products == sorted(products)
    assert solution.products >= products[-1]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_iterations_of_both_precisions_count_together(noisy_gram, limit):
    solution = in_both_precisions(noisy_gram(300, 1.0), max_iterations=limit)
    assert len(solution.history) == limit
    assert not solution.converged


def test_products_alone_offer_no_single_precision(noisy_gram):
    array = noisy_gram(200, 1.0)
    solution = nearest_in_memory(ProductsOnly(array), tolerance=1e-6, max_iterations=100)
    assert solution.converged
    assert solution.parameters["single_precision_iterations"] == 0


def test_noise_that_single_precision_rounds_to_more_than_the_tolerance(noisy_gram):
    """Without another rule than the residual all iterations would go by in single precision."""
    solution = in_both_precisions(noisy_gram(120, 1e5))
    assert solution.converged
    single = solution.parameters["single_precision_iterations"]
    assert 0 < single < len(solution.history) - 1


@pytest.mark.parametrize("wrong", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_parameters_outside_their_domain_are_refused_before_any_product(wrong):
    with pytest.raises(ParameterError):
        in_both_precisions(np.eye(3), **wrong)


def test_products_are_those_of_the_array_in_single_precision(noisy_gram):
    array = noisy_gram(50, 1.0)
    panel = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    product = SinglePrecision(array).matmat(panel)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, array @ panel, rtol=1e-4, atol=1e-4)


def test_project_says_how_many_steps_were_single(noisy_gram):
    projection = project(noisy_gram(300, 1.0), method="nearest", form="blockwise")
    assert 0 < projection.parameters["single_precision_iterations"] <= projection.iterations
