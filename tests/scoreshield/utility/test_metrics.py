"""Metrics against tables worked out by hand, and against scikit-learn."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score, top_k_accuracy_score

from scoreshield.errors import InputRejected, ParameterError, ScoreShieldError
from scoreshield.utility.metrics import (
    accuracy,
    auc,
    best_accuracy,
    chance_mean_reciprocal_rank,
    chance_recall_at,
    equal_error_rate,
    mean_reciprocal_rank,
    recall_at,
    roc_curve,
    tar_at_far,
)

# Three genuine and five impostor pairs; one score is shared.
GENUINE = [0.9, 0.6, 0.4]
IMPOSTOR = [0.7, 0.4, 0.3, 0.2, 0.1]


def test_roc_by_hand() -> None:
    curve = roc_curve(GENUINE, IMPOSTOR)
    assert curve.thresholds.tolist() == [np.inf, 0.9, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1]
    assert curve.false_positive_rate == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.6, 0.8, 1])
    assert curve.true_positive_rate == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 1, 1, 1, 1])


def test_auc_by_hand() -> None:
    # 0.9 beats 5; 0.6 beats 4; 0.4 beats 3 and ties with 1: 12.5 of 15.
    assert auc(GENUINE, IMPOSTOR) == pytest.approx(12.5 / 15)
    assert roc_curve(GENUINE, IMPOSTOR).area == pytest.approx(12.5 / 15)


def test_operating_points_by_hand() -> None:
    # Between (0.2, 2/3) and (0.4, 1) FPR + TPR passes 1 at FPR = 0.2 + 0.2·(2/15)/(8/15).
    assert equal_error_rate(GENUINE, IMPOSTOR) == pytest.approx(0.25)
    assert equal_error_rate([0.8, 0.4], [0.6, 0.2]) == pytest.approx(0.5)
    assert equal_error_rate([2.0, 3.0], [0.0, 1.0]) == 0
    assert tar_at_far(GENUINE, IMPOSTOR, 0.0) == pytest.approx(1 / 3)
    assert tar_at_far(GENUINE, IMPOSTOR, 0.2) == pytest.approx(2 / 3)
    assert tar_at_far(GENUINE, IMPOSTOR, 0.399) == pytest.approx(2 / 3)
    assert tar_at_far(GENUINE, IMPOSTOR, 1.0) == 1
    assert accuracy(GENUINE, IMPOSTOR, 0.5) == pytest.approx(6 / 8)
    assert accuracy(GENUINE, IMPOSTOR, 0.4) == pytest.approx(6 / 8)
    assert best_accuracy(GENUINE, IMPOSTOR) == (pytest.approx(6 / 8), 0.9)


def test_ranks_by_hand() -> None:
    scores = [[0.9, 0.5, 0.1], [0.2, 0.8, 0.5], [0.3, 0.6, 0.9]]
    relevant = [0, 2, 0]  # ranks 1, 2, 3
    assert [recall_at(scores, relevant, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert mean_reciprocal_rank(scores, relevant) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert mean_reciprocal_rank(scores, relevant, cutoff=2) == pytest.approx(0.5)


def test_ties_count_as_if_broken_at_random() -> None:
    clipped = [[1.0, 1.0, 1.0, 0.5]]
    assert recall_at(clipped, [1], 1) == pytest.approx(1 / 3)
    assert recall_at(clipped, [1], 2) == pytest.approx(2 / 3)
    assert recall_at(clipped, [3], 3) == 0
    assert mean_reciprocal_rank(clipped, [1], 2) == pytest.approx((1 + 1 / 2) / 3)
    assert mean_reciprocal_rank(clipped, [3], 10) == pytest.approx(1 / 4)


@pytest.mark.parametrize("k", [1, 5, 10, 300])
def test_equal_scores_rank_as_chance_does(k: int) -> None:
    scores, relevant = np.ones((2, 240)), np.array([3, 239])
    assert recall_at(scores, relevant, k) == pytest.approx(chance_recall_at(240, k))
    assert mean_reciprocal_rank(scores, relevant, k) == pytest.approx(
        chance_mean_reciprocal_rank(240, k)
    )


finite = st.floats(-1, 1).map(lambda x: round(x, 2))


@given(st.lists(finite, min_size=1, max_size=30), st.lists(finite, min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_the_area_under_the_curve_is_the_probability(one: list[float], other: list[float]) -> None:
    wins = np.mean([(g > i) + 0.5 * (g == i) for g in one for i in other])
    assert auc(one, other) == pytest.approx(wins)
    assert roc_curve(one, other).area == pytest.approx(wins)
    assert auc(other, one) == pytest.approx(1 - wins)
    assert 0 <= equal_error_rate(one, other) <= 1


def test_scikit_learn_agrees() -> None:
    generator = np.random.default_rng(3)
    genuine, impostor = generator.normal(0.6, 0.5, 300), generator.normal(0.1, 0.5, 500)
    labels, scores = np.repeat([1, 0], [300, 500]), np.concatenate([genuine, impostor])
    assert auc(genuine, impostor) == pytest.approx(roc_auc_score(labels, scores))
    assert accuracy(genuine, impostor, 0.3) == pytest.approx(accuracy_score(labels, scores >= 0.3))
    # top_k_accuracy_score breaks ties by index, so without ties:
    table, relevant = generator.normal(size=(200, 40)), generator.integers(0, 40, 200)
    for k in (1, 5):
        expected = top_k_accuracy_score(relevant, table, k=k, labels=np.arange(40))
        assert recall_at(table, relevant, k) == pytest.approx(expected)


def test_without_scikit_learn_a_curve_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ScoreShieldError, match=r"scoreshield\[evaluation\]"):
        roc_curve(GENUINE, IMPOSTOR)


@pytest.mark.parametrize("faulty", [[], [np.nan], [0.5, np.inf]])
def test_empty_or_non_finite_scores_are_refused(faulty: list[float]) -> None:
    for metric in (auc, equal_error_rate, roc_curve):
        with pytest.raises(InputRejected, match=r"genuine scores: .*expected one or more finite"):
            metric(faulty, [0.1])
        with pytest.raises(InputRejected, match="impostor scores"):
            metric([0.1], faulty)


def test_bad_rankings_are_refused() -> None:
    with pytest.raises(InputRejected, match=r"\(1, 2\) and relevant records \(2,\)"):
        recall_at([[0.1, 0.2]], [0, 1], 1)
    for relevant in ([2], [-1], [0.0]):
        with pytest.raises(InputRejected, match="indices from 0 to 1"):
            recall_at([[0.1, 0.2]], relevant, 1)
    with pytest.raises(InputRejected, match="not finite"):
        mean_reciprocal_rank([[0.1, np.nan]], [0])
    with pytest.raises(ParameterError, match="found 0"):
        recall_at([[0.1, 0.2]], [0], 0)
    with pytest.raises(ParameterError, match=r"\[0, 1\], found 1.5"):
        tar_at_far([0.1], [0.2], 1.5)
