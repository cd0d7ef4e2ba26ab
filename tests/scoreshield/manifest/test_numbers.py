"""Every manifest that a mechanism gives agrees with itself; one with a false number does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.manifest.numbers import number_faults
from scoreshield.manifest.schema import Manifest, NoisyRecord, from_json
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.noise.encoding import choose_encoding
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange
from tests.harness.manifests import edited, manifest_of


def scores(m: int, d: int, adjacency: Adjacency, score_range: ScoreRange = FULL_RANGE) -> Mechanism:
    queries = to_fixed(np.random.default_rng(m).normal(size=(m, d)))
    return scores_mechanism(40, queries, 2.0, 1e-6, adjacency, score_range)


adjacencies = st.one_of(
    st.just(Adjacency()),
    st.builds(Adjacency, st.just("shift"), st.floats(1e-6, 2)),
    st.builds(Adjacency, st.just("output"), st.floats(1e-3, 1e3)),
)
ranges = st.sampled_from([FULL_RANGE, ScoreRange(0.0, 1.0), ScoreRange(-0.1, 0.3)])


def test_an_epsilon_of_zero_has_a_place() -> None:
    """At a large delta little noise is enough: an implied loss, or the signal's, may be zero."""
    little = calibrate_gram(2, 1, 1.0, 0.0078125, Adjacency("shift", 0.015625))
    assert manifest_of(little).forecast.epsilon_for_signal == 0  # type: ignore[union-attr]
    much = calibrate_gram(2, 1, 1.0, 1e-3, Adjacency("output", 1e4))
    assert much.implied.epsilon == 0
    assert number_faults(manifest_of(much)) == []


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 10**6),
    st.integers(1, 4096),
    st.floats(0.05, 30),
    st.floats(1e-12, 1e-2),
    adjacencies,
    ranges,
)
def test_what_a_gram_mechanism_gives_agrees(
    n: int, d: int, epsilon: float, delta: float, adjacency: Adjacency, score_range: ScoreRange
) -> None:
    mechanism = calibrate_gram(n, d, epsilon, delta, adjacency, score_range)
    assert number_faults(manifest_of(mechanism)) == []


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), adjacencies, ranges)
def test_what_a_scores_mechanism_gives_agrees(
    m: int, d: int, adjacency: Adjacency, score_range: ScoreRange
) -> None:
    assert number_faults(manifest_of(scores(m, d, adjacency, score_range))) == []


def test_queries_at_both_ends_of_the_bounds_agree() -> None:
    """Equal queries have the largest norm, an orthonormal basis the smallest."""
    for rows in (np.ones((6, 3)) / np.sqrt(3), np.eye(6)):
        mechanism = scores_mechanism(40, to_fixed(rows), 2.0, 1e-6, Adjacency(), FULL_RANGE)
        assert number_faults(manifest_of(mechanism)) == []


def test_a_test_mode_agrees() -> None:
    marked = manifest_of(not_private_reason="fixed seed", composition=None)
    assert number_faults(marked) == []
    assert number_faults(marked.model_copy(update={"private": True})) == [
        "private is True and not_private_reason is 'fixed seed'"
    ]


@pytest.mark.parametrize("dtype", ["float32", "int16", "int8"])
def test_a_precision_agrees_with_its_own_step_and_words_alone(dtype: Any) -> None:
    mechanism = calibrate_gram(30, 5, 2.0, 1e-6)
    encoding = choose_encoding(mechanism.sigma, dtype)
    words = encoding.described(mechanism.sigma)
    noisy = NoisyRecord(
        sha256="0" * 64,
        blocks=1,
        block_side=1024,
        dtype=dtype,
        step=encoding.step,
        rounding=words,
    )
    stated = manifest_of(mechanism).model_copy(update={"noisy": noisy})
    assert number_faults(stated) == []
    (fault,) = number_faults(changed(stated, "noisy.step", 0.5))
    assert fault.startswith("noisy.step is 0.5")
    (fault,) = number_faults(changed(stated, "noisy.rounding", "nothing was rounded"))
    assert fault.startswith("noisy.rounding does not say")


def changed(manifest: Manifest, place: str, value: Any) -> Manifest:
    return from_json(edited(manifest, place, value))


GRAM = manifest_of()
SHIFT = manifest_of(calibrate_gram(30, 5, 2.0, 1e-6, Adjacency("shift", 0.1)))
SCORES = manifest_of(scores(7, 4, Adjacency()))
ONE = manifest_of(scores(1, 4, Adjacency("output", 1.0)))


@pytest.mark.parametrize(
    ("manifest", "place", "value", "named"),
    [
        (GRAM, "mechanism.sigma", 1e-9, "mu"),
        (GRAM, "mechanism.sigma", 1e300, "sigma"),
        (GRAM, "mechanism.grid", 3.0, "grid"),
        (GRAM, "mechanism.grid_exponent", -47, "grid"),
        (GRAM, "mechanism.grid_exponent", 10**9, "grid_exponent"),
        (GRAM, "mechanism.fraction_bits", 8, "fraction_bits"),
        (GRAM, "mechanism.noise_multiplier", 9.0, "noise_multiplier"),
        (GRAM, "mechanism.sensitivity.value", 1e-9, "sensitivity"),
        (GRAM, "mechanism.score_range", [0.5, 0.6], "sensitivity"),
        (GRAM, "mechanism.score_range", [0.6, 0.5], "score_range"),
        (GRAM, "shape.n", 3, "sensitivity"),
        (GRAM, "shape.n", 1, "out of its domain"),
        (GRAM, "privacy.mu", 1e-9, "mu"),
        (GRAM, "privacy.epsilon", 0.01, "does not give epsilon"),
        (GRAM, "privacy.epsilon", 1e300, "out of its domain"),
        (GRAM, "privacy.delta", 1e-9, "does not give epsilon"),
        (GRAM, "privacy.adjacency", "shift", "radius"),
        (GRAM, "privacy.radius", 0.1, "radius"),
        (GRAM, "privacy.privacy_unit", "a household", "privacy_unit"),
        (GRAM, "privacy.statement", "perfectly private", "statement"),
        (GRAM, "privacy.implied_record_replacement.epsilon", 0.1, "implied"),
        (SHIFT, "privacy.radius", 0.2, "sensitivity"),
        (SHIFT, "privacy.implied_record_replacement.mu", 1e-3, "implied_record_replacement.mu"),
        (SHIFT, "privacy.implied_record_replacement.epsilon", 2.0, "does not give epsilon"),
        (SHIFT, "privacy.implied_record_replacement.delta", 0.5, "implied_record_replacement"),
        (GRAM, "composition.spent_after", {"mu_squared": "0/1", "epsilon": 0.0}, "spent_after"),
        (GRAM, "composition.spent_after.epsilon", 0.1, "spent_after.epsilon"),
        (GRAM, "composition.spent_before.epsilon", 0.1, "spent_before.epsilon"),
        (GRAM, "composition.spent_before.mu_squared", "1" * 5000 + "/1", "out of its domain"),
        (GRAM, "forecast", None, "forecast is missing"),
        (GRAM, "forecast.recoverable_share", 0.01, "forecast.recoverable_share"),
        (GRAM, "forecast.carries_signal", True, "forecast.carries_signal"),
        (SCORES, "mechanism.sensitivity.value", 1e-9, "sensitivity"),
        (SCORES, "mechanism.sensitivity.value", 5.4, "sensitivity"),
        (SCORES, "shape.m", 700, "sensitivity"),
        (SCORES, "shape.m", None, "number of queries"),
        (ONE, "mechanism.sensitivity.value", 0.9, "sensitivity"),
        (ONE, "privacy.implied_record_replacement.mu", 1e-3, "implied_record_replacement.mu"),
    ],
)
def test_a_false_number_is_named(manifest: Manifest, place: str, value: Any, named: str) -> None:
    assert number_faults(manifest) == []
    faults = number_faults(changed(manifest, place, value))
    assert any(named in fault for fault in faults), faults


def test_a_smaller_loss_cannot_be_claimed_for_less_noise() -> None:
    """All of sigma, mu and Delta scaled together still contradict the sizes."""
    forged = changed(GRAM, "mechanism.sigma", GRAM.mechanism.sigma / 1000)
    forged = changed(forged, "mechanism.sensitivity.value", GRAM.mechanism.sensitivity.value / 1000)
    assert any("sensitivity is" in fault for fault in number_faults(forged))


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1.7e308])
@pytest.mark.parametrize(
    "place",
    [
        "mechanism.sigma",
        "mechanism.sensitivity.value",
        "privacy.mu",
        "privacy.epsilon",
        "privacy.radius",
        "privacy.implied_record_replacement.mu",
        "privacy.implied_record_replacement.epsilon",
        "composition.spent_after.epsilon",
    ],
)
def test_absurd_numbers_are_faults_and_no_crash(place: str, value: float) -> None:
    assert number_faults(changed(SHIFT, place, value))
