"""The paper's averaged alternating projection."""

from __future__ import annotations

import numpy as np
import pytest

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.dense.aap import (
    averaged_alternating_projection,
    averaged_step,
    estimated_linear_rate,
    relaxed_box,
)
from scoreshield.projection.dense.eigen import uniform_dual_shift
from scoreshield.projection.dense.nearest import nearest_correlation

KNOWN = [
    "higham",
    "nag",
    "equicorrelation above",
    "equicorrelation below",
    "planted",
    "one by one",
]


def aap(array, **parameters):
    return averaged_alternating_projection(DenseOperator(array), **parameters)


@pytest.mark.parametrize("relaxation", [1.0, 1.9])
@pytest.mark.parametrize("start", ["input", "dual_shift"])
@pytest.mark.parametrize("case", KNOWN)
def test_reaches_feasibility_on_known_inputs(known_inputs, case, start, relaxation):
    result = aap(known_inputs[case], tolerance=1e-6, start=start, relaxation=relaxation)
    assert result.converged
    assert result.history[-1].residual <= 1e-6
    assert result.certificate.diagonal_residual == result.history[-1].residual
    assert [step.number for step in result.history] == list(range(1, result.iterations + 1))
    residuals = [step.residual for step in result.history]
    # Fejér monotone iterates: the residual falls, if not at every single step.
    assert residuals[-1] == min(residuals)
    if len(residuals) >= 8:
        assert 0.0 < result.linear_rate < 1.0


def test_matches_a_plain_transcription_of_the_paper(noisy_gram):
    noisy = DenseOperator(noisy_gram(30, 0.5)).array
    X = noisy.copy()
    for _ in range(7):
        values, vectors = np.linalg.eigh(X)
        Z = (vectors * np.maximum(values, 0.0)) @ vectors.T
        box = np.clip(Z, -1.0, 1.0)
        np.fill_diagonal(box, 1.0)
        X = 0.5 * (X + box)
    values, vectors = np.linalg.eigh(X)
    Z = (vectors * np.maximum(values, 0.0)) @ vectors.T
    result = aap(noisy, tolerance=1e-15, max_iterations=8)
    assert result.iterations == 8
    assert not result.converged
    scale = np.minimum(1.0, 1.0 / np.sqrt(np.diag(Z)))
    expected = Z * np.outer(scale, scale)
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(result.gram(), expected, rtol=0, atol=1e-12)
    assert result.history[-1].residual == pytest.approx(
        np.sqrt(np.mean((np.diag(Z) - 1.0) ** 2)), rel=1e-10
    )


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
def test_the_estimated_rate_predicts_the_residuals(noisy_gram, sigma):
    result = aap(noisy_gram(80, sigma), tolerance=1e-7, max_iterations=2000)
    assert result.converged
    residuals = [step.residual for step in result.history]
    tail = residuals[-len(residuals) // 4 :]
    observed = (tail[-1] / tail[0]) ** (1 / (len(tail) - 1))
    assert result.linear_rate == pytest.approx(observed, abs=0.03)
    assert 0.5 <= result.linear_rate < 1.0


def test_over_relaxation_saves_iterations(noisy_gram):
    noisy = noisy_gram(80, 1.0)
    plain, relaxed = aap(noisy), aap(noisy, relaxation=1.9)
    assert relaxed.converged
    assert relaxed.iterations <= 0.6 * plain.iterations


def test_the_shifted_start_ends_nearer_to_the_exact_projection(noisy_gram):
    noisy = noisy_gram(120, 2.0)
    exact = nearest_correlation(DenseOperator(noisy)).gram()
    plain, shifted = (
        np.linalg.norm(aap(noisy, start=start, tolerance=1e-5).gram() - exact)
        for start in ("input", "dual_shift")
    )
    assert shifted < 0.7 * plain


def test_the_shifted_start_is_the_input_lowered_to_the_right_trace(noisy_gram):
    noisy = DenseOperator(noisy_gram(40, 1.0)).array
    result = aap(noisy, start="dual_shift", max_iterations=1)
    values, vectors = np.linalg.eigh(noisy)
    shift = uniform_dual_shift(values, 40.0)
    assert shift < -1.0
    diagonal = (vectors**2) @ np.maximum(values + shift, 0.0)
    assert diagonal.sum() == pytest.approx(40.0)
    assert result.history[0].residual == pytest.approx(np.sqrt(np.mean((diagonal - 1.0) ** 2)))


def test_a_feasible_input_is_kept(clean_gram):
    clean = clean_gram(40)
    result = aap(clean, tolerance=1e-12)
    assert result.iterations == 1
    np.testing.assert_allclose(result.gram(), clean, rtol=0, atol=1e-12)


def test_a_truncated_step_is_called_truncated(noisy_gram):
    noisy = noisy_gram(100, 0.5)
    full, truncated = aap(noisy), aap(noisy, rank=12)
    assert (full.parameters["psd_step"], full.parameters["rank_limit"]) == ("full", None)
    assert truncated.parameters["psd_step"] == "truncated"
    assert truncated.parameters["rank_limit"] == 12
    assert truncated.rank <= 12 < full.rank
    assert truncated.feasible


def test_the_parameters_state_what_shaped_the_result(noisy_gram):
    result = aap(noisy_gram(10, 0.1), weight=0.7, relaxation=1.5, start="dual_shift")
    assert result.parameters["weight"] == 0.7
    assert result.parameters["relaxation"] == 1.5
    assert result.parameters["start"] == "dual_shift"
    assert result.parameters["tolerance"] == 1e-4
    assert "rows" in result.parameters["post_step"]


def test_running_out_of_steps_is_not_called_converged(noisy_gram):
    seen = []
    result = aap(noisy_gram(50, 1.0), max_iterations=3, progress=seen.append)
    assert not result.converged
    assert result.feasible
    assert tuple(seen) == result.history
    assert [step.eigendecompositions for step in seen] == [1, 2, 3]


def test_the_box_step_is_the_same_by_blocks():
    rng = np.random.default_rng(0)
    Z = 2.0 * rng.normal(size=(9, 9))
    whole = relaxed_box(Z, 1.3, 0)
    np.testing.assert_array_equal(relaxed_box(Z[3:6], 1.3, 3), whole[3:6])
    np.testing.assert_array_equal(relaxed_box(Z[3:6, 6:], 1.3, None), whole[3:6, 6:])
    np.testing.assert_array_equal(relaxed_box(Z[3:6, 3:6], 1.3, 0), whole[3:6, 3:6])


def test_the_averaged_step_is_the_same_across_panels():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(2, 300, 300))
    box = np.clip(Z, -1, 1)
    np.fill_diagonal(box, 1.0)
    expected = 0.6 * X + 0.4 * (Z + 1.5 * (box - Z))
    averaged_step(X, Z, 0.4, 1.5)
    np.testing.assert_allclose(X, expected, rtol=0, atol=1e-13)


def test_the_rate_of_a_geometric_sequence_is_its_ratio():
    assert estimated_linear_rate([0.8**k for k in range(20)]) == pytest.approx(0.8)
    assert estimated_linear_rate([1.0, 0.5]) is None
    assert estimated_linear_rate([0.0, 0.0, 0.0, 0.0]) is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weight": 0.0}, "weight is 0.0"),
        ({"weight": 1.1}, "weight is 1.1"),
        ({"relaxation": 2.0}, "relaxation is 2.0"),
        ({"relaxation": float("nan")}, "relaxation is nan"),
        ({"rank": 0}, "rank is 0"),
        ({"start": "middle"}, "expected one of input, dual_shift"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"max_iterations": 0}, "max_iterations is 0"),
    ],
)
def test_parameters_outside_their_domain_are_refused(parameters, message):
    with pytest.raises(ParameterError, match=message):
        aap(np.eye(3), **parameters)
