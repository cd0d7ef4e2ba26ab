"""Analytic calibration against 30-digit answers and 80-digit arithmetic."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scoreshield.errors import ParameterError
from scoreshield.privacy.calibration import (
    compose,
    exact_delta_holds,
    log_delta_bound,
    noise_multiplier,
    smallest_epsilon,
)
from tests.harness.gaussian import exact_delta

KNOWN = Path(__file__).resolve().parents[2] / "known_answers" / "noise_multipliers.csv"

EPSILONS_OUTSIDE = [0.0, -1.0, math.nan, math.inf, -math.inf, 9e-7, 1.1e6]
DELTAS_OUTSIDE = [0.0, -1e-6, math.nan, math.inf, 1.0, 2.0, 1e-301]

epsilons = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)
deltas = st.one_of(
    st.floats(-100, -0.31).map(lambda exponent: 10.0**exponent), st.floats(0.4, 0.99)
)


def delta_at_multiplier(multiplier: float, shrink: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(300):
        return exact_delta(1 / (mpmath.mpf(multiplier) * (1 - mpmath.mpf(shrink))), epsilon)


def test_noise_multiplier_known_answers() -> None:
    with KNOWN.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 91
    for row in rows:
        found = noise_multiplier(float(row["epsilon"]), float(row["delta"]))
        with mpmath.workdps(40):
            excess = mpmath.mpf(found) / mpmath.mpf(row["noise_multiplier"]) - 1
        assert 0 <= excess <= 1e-6, row


@settings(max_examples=60, deadline=None, derandomize=True)
@given(epsilon=epsilons, delta=deltas)
@example(epsilon=1e-6, delta=1e-12)
@example(epsilon=1e6, delta=1e-12)
@example(epsilon=709.8, delta=1e-6)
@example(epsilon=1e-2, delta=1e-100)
def test_noise_multiplier_is_enough_and_barely(epsilon: float, delta: float) -> None:
    multiplier = noise_multiplier(epsilon, delta)
    assert delta_at_multiplier(multiplier, 0, epsilon) <= mpmath.mpf(delta)
    assert delta_at_multiplier(multiplier, 1e-6, epsilon) > mpmath.mpf(delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 1e-300), (1e6, 1e-300), (1e6, 0.999999)])
def test_noise_multiplier_is_safe_in_the_corners(epsilon: float, delta: float) -> None:
    multiplier = noise_multiplier(epsilon, delta)
    with mpmath.workdps(700):
        assert exact_delta(1 / mpmath.mpf(multiplier), epsilon) <= mpmath.mpf(delta)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(mu=st.floats(-3, 2).map(lambda exponent: 10.0**exponent), delta=deltas)
def test_smallest_epsilon_is_enough_and_barely(mu: float, delta: float) -> None:
    epsilon = smallest_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= mpmath.mpf(delta)
    if epsilon > 1e-6:
        assert exact_delta(mu, epsilon * (1 - 1e-6)) > mpmath.mpf(delta)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(epsilon=epsilons, delta=st.floats(-15, -1).map(lambda exponent: 10.0**exponent))
def test_smallest_epsilon_inverts_noise_multiplier(epsilon: float, delta: float) -> None:
    found = smallest_epsilon(1 / noise_multiplier(epsilon, delta), delta)
    # Where δ(ε) is nearly flat in ε, the two safety margins show; only there the floor matters.
    assert found == pytest.approx(epsilon, rel=1e-6, abs=1e-7)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(epsilon=epsilons, delta=deltas, factor=st.floats(1.001, 10))
def test_more_privacy_needs_more_noise(epsilon: float, delta: float, factor: float) -> None:
    multiplier = noise_multiplier(epsilon, delta)
    assert noise_multiplier(epsilon * factor, delta) < multiplier
    assert noise_multiplier(epsilon, delta / factor) > multiplier


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 1e-2])
def test_more_noise_gives_more_privacy(delta: float) -> None:
    found = [smallest_epsilon(mu, delta) for mu in (0.05, 0.1, 1.0, 10.0, 100.0)]
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("refuses", "values", "complaint"),
    [
        (lambda epsilon: noise_multiplier(epsilon, 1e-6), EPSILONS_OUTSIDE, "epsilon must lie in"),
        (lambda delta: noise_multiplier(1.0, delta), DELTAS_OUTSIDE, "delta must lie in"),
        (lambda delta: smallest_epsilon(1.0, delta), DELTAS_OUTSIDE, "delta must lie in"),
        (lambda delta: compose([4.0], delta), DELTAS_OUTSIDE, "delta must lie in"),
        (lambda mu: smallest_epsilon(mu, 1e-6), [-1.0, math.nan, math.inf], "mu must be"),
        (
            lambda multiplier: compose([4.0, multiplier], 1e-6),
            [0.0, -1.0, math.nan, math.inf],
            "noise multipliers must be positive",
        ),
    ],
)
def test_values_outside_their_domain_are_refused(
    refuses: Callable[[float], float], values: list[float], complaint: str
) -> None:
    for value in values:
        with pytest.raises(ParameterError, match=complaint):
            refuses(value)


def test_epsilon_beyond_the_domain_is_refused_rather_than_returned() -> None:
    with pytest.raises(ParameterError, match="no certified epsilon"):
        smallest_epsilon(2000.0, 1e-6)


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)]
)
def test_delta_bound_fails_closed(mu: float, epsilon: float) -> None:
    assert not log_delta_bound(mu, epsilon) <= math.log(0.5)


def test_no_loss_needs_no_epsilon() -> None:
    assert smallest_epsilon(0.0, 1e-6) == 0.0
    # δ(0) = 2Φ(μ/2) − 1 ≈ 0.04 is already below δ.
    assert smallest_epsilon(0.1, 0.05) == 0.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(mu=st.floats(0.01, 50), epsilon=st.floats(1e-3, 500))
def test_delta_bound_is_above_the_exact_delta_and_close(mu: float, epsilon: float) -> None:
    with mpmath.workdps(300):
        exact = mpmath.log(exact_delta(mu, epsilon))
        excess = mpmath.mpf(log_delta_bound(mu, epsilon)) - exact
        assert 0 <= excess <= 1e-6 * (1 + abs(exact))


@pytest.mark.parametrize("shrink", [0.0, 1e-6])
def test_exact_check_sees_a_millionth_of_the_noise(shrink: float) -> None:
    mu = 1 / (noise_multiplier(1.0, 1e-6) * (1 - shrink))
    assert exact_delta_holds(mu, 1.0, 1e-6) is (shrink == 0.0)


class TestCompose:
    FOUR = (4.224678889326835283,) * 4

    def test_four_releases_known_answer(self) -> None:
        total = compose(self.FOUR, 1e-6)
        assert total == pytest.approx(2.1228571, abs=1e-6)
        assert exact_delta(2 / self.FOUR[0], total) <= 1e-6
        assert exact_delta(2 / self.FOUR[0], total - 1e-7) > 1e-6

    def test_unequal_releases_add_as_squares(self) -> None:
        # 3² + 4² = 5²
        assert compose([1 / 3, 1 / 4], 1e-6) == pytest.approx(smallest_epsilon(5.0, 1e-6), rel=1e-8)

    def test_order_does_not_matter_and_nothing_is_nothing(self) -> None:
        multipliers = [0.5, 3.0, 20.0]
        assert compose(multipliers, 1e-6) == compose(multipliers[::-1], 1e-6)
        assert compose([], 1e-6) == 0.0

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(multipliers=st.lists(st.floats(0.5, 100), min_size=1, max_size=8))
    def test_never_below_the_exact_total(self, multipliers: list[float]) -> None:
        total = compose(multipliers, 1e-6)
        with mpmath.workdps(300):
            mu = mpmath.sqrt(sum(1 / mpmath.mpf(each) ** 2 for each in multipliers))
        assert exact_delta(mu, total) <= 1e-6
