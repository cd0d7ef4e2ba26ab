"""Alternating projection by products: the clipped iterate, and agreement with the full form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from scoreshield.errors import ParameterError
from scoreshield.projection import DenseOperator
from scoreshield.projection.blockwise.aap import BOX_STEPS, ClosingState, aap_blockwise, relaxation
from scoreshield.projection.blockwise.box_correction import SPARSE_SHARE, BoxCorrection
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.dense.aap import averaged_alternating_projection
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.solution import in_memory


def blockwise(array, **parameters):
    operator = DenseOperator(array)
    return aap_blockwise(operator, ArrayPanels(operator.n), BoxCorrection, **parameters)


@pytest.mark.parametrize(("scale", "sparse"), [(0.6, False), (0.3, True)])
def test_the_box_correction_is_never_stored_but_multiplies_like_it(scale, sparse):
    rng = np.random.default_rng(0)
    factor, W = scale * rng.normal(size=(1100, 12)), rng.normal(size=(1100, 3))
    Z = factor @ factor.T
    boxed = np.clip(Z, -1.0, 1.0)
    np.fill_diagonal(boxed, 1.0)
    assert (np.count_nonzero(boxed - Z) < SPARSE_SHARE * Z.size) == sparse
    operator = BoxCorrection(factor)
    assert operator.n == 1100
    for _ in range(2):
        np.testing.assert_allclose(operator.matmat(W), (boxed - Z) @ W, atol=1e-10)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 4.0, 12.6])
def test_agrees_with_the_full_spectrum_within_two_per_cent(clean_gram, noisy_gram, sigma):
    clean, noisy = clean_gram(300, d=32), noisy_gram(300, sigma, d=32)
    full = averaged_alternating_projection(DenseOperator(noisy), weight=1.0)
    solution = blockwise(noisy)
    assert solution.converged
    error = np.linalg.norm(in_memory(solution).gram() - clean)
    assert error == pytest.approx(np.linalg.norm(full.gram() - clean), rel=0.02)
    assert len(solution.history) <= 10 < full.iterations
    # 30 for the start on G, two a box step; those of the closing projection read no matrix.
    assert solution.history[BOX_STEPS].products <= 30 + 2 * BOX_STEPS


def test_known_inputs_become_feasible(known_inputs):
    for name, array in known_inputs.items():
        solution = blockwise(array, tolerance=1e-6)
        assert solution.converged, name
        gram = in_memory(solution).gram()
        np.testing.assert_array_equal(np.diag(gram), 1.0)
        assert np.linalg.eigvalsh(gram)[0] >= -1e-12
        assert solution.diagonal.max() <= 1e-5


def test_the_residual_of_a_given_rank_falls_linearly_at_the_stated_rate(noisy_gram):
    solution = blockwise(noisy_gram(250, 1.0, d=32), tolerance=1e-6, rank=45)
    residuals = [step.residual for step in solution.history]
    tail = residuals[-len(residuals) // 4 :]
    observed = (tail[-1] / tail[0]) ** (1 / (len(tail) - 1))
    assert 0.0 < solution.linear_rate < 1.0
    assert solution.linear_rate == pytest.approx(observed, abs=0.1)


def test_the_dual_shift_ends_nearer_to_the_exact_projection(noisy_gram):
    noisy = noisy_gram(300, 3.0, d=32)
    exact = nearest_correlation(DenseOperator(noisy)).gram()
    plain, shifted = (
        np.linalg.norm(in_memory(blockwise(noisy, start=start)).gram() - exact)
        for start in ("input", "dual_shift")
    )
    assert shifted < 0.7 * plain


def test_the_ratio_to_the_full_form_holds_for_clusters_with_near_duplicates(galleries):
    rows = galleries["few tight clusters"]
    noise = np.triu(np.random.default_rng(0).normal(size=(len(rows),) * 2), 1)
    clean, noisy = rows @ rows.T, rows @ rows.T + 0.3 * (noise + noise.T)
    full = averaged_alternating_projection(DenseOperator(noisy), weight=1.0)
    error = np.linalg.norm(in_memory(blockwise(noisy)).gram() - clean)
    assert error == pytest.approx(np.linalg.norm(full.gram() - clean), rel=0.02)


def test_a_given_rank_is_kept_to_the_end(noisy_gram):
    noisy = noisy_gram(300, 0.1, d=100)
    fixed = blockwise(noisy, rank=20, max_iterations=30)
    assert fixed.rank <= fixed.parameters["rank_limit"] == 20
    assert fixed.parameters["smallest_kept_eigenvalue"] > 1.0
    assert len(fixed.history) == 30
    chosen = blockwise(noisy)
    assert chosen.parameters["rank_limit"] >= 49  # 2√(2n)
    assert chosen.parameters["box_steps"] == BOX_STEPS
    assert chosen.rank > 49


@pytest.mark.parametrize("sigma", [0.2, 2.0])
def test_any_step_can_be_resumed(noisy_gram, sigma):
    noisy, states = noisy_gram(200, sigma), []
    whole = blockwise(noisy, checkpoint=states.append)
    assert len(states) == len(whole.history) > BOX_STEPS + 2
    assert isinstance(states[-1], ClosingState)
    for state in states:
        stored = pickle.loads(pickle.dumps(state))  # noqa: S301
        resumed = blockwise(noisy, resume_from=stored)
        assert tuple(resumed.history) == tuple(whole.history)
        np.testing.assert_array_equal(resumed.factor, whole.factor)


def test_single_precision_panels(noisy_gram):
    noisy = noisy_gram(250, 1.0).astype(np.float32)

    class Single:
        n = 250
        array = DenseOperator(noisy).array.astype(np.float32)

        def matmat(self, W):
            return self.array @ W

    solution = aap_blockwise(Single(), ArrayPanels(250, np.float32), BoxCorrection)
    assert solution.converged
    assert solution.factor.dtype == np.float32
    double = blockwise(noisy)
    difference = in_memory(solution).gram() - in_memory(double).gram()
    assert np.linalg.norm(difference) <= 1e-2 * np.linalg.norm(in_memory(double).gram())


def test_steps_are_plain_until_the_residual_has_settled():
    assert relaxation(1.5) == 1.0
    assert relaxation(1e-3) == 1.9


def test_running_out_of_steps_is_said(noisy_gram):
    solution = blockwise(noisy_gram(120, 1.0), max_iterations=4)
    assert not solution.converged
    assert len(solution.history) == 4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"start": "zero"}, "start is 'zero'"),
        ({"tolerance": 0.0}, "tolerance is 0"),
    ],
)
def test_senseless_parameters_are_refused(parameters, message):
    with pytest.raises(ParameterError, match=message):
        blockwise(np.eye(4), **parameters)
