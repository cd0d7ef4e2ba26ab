"""Spends as exact numbers: nothing is lost in a sum, and nothing fits that should not."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.privacy.accounting import fits, largest_epsilon, spend_of, total_epsilon
from scoreshield.privacy.calibration import compose, noise_multiplier
from tests.harness.gaussian import exact_delta

BUDGETS = [(1.0, 1e-6), (8.0, 1e-6), (20.0, 1e-5), (0.1, 1e-12), (200.0, 1e-3)]

epsilons = st.floats(-2, 2).map(lambda exponent: 10.0**exponent)
deltas = st.floats(-12, -3).map(lambda exponent: 10.0**exponent)


def release(epsilon: float, delta: float, sensitivity: float = 1.0) -> Fraction:
    """Spend of a release calibrated the way the mechanism does it."""
    return spend_of(sensitivity, noise_multiplier(epsilon, delta) * sensitivity * (1 + 2.0**-50))


def delta_of(spent: Fraction, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(300):
        return exact_delta(mpmath.sqrt(mpmath.mpf(spent.numerator) / spent.denominator), epsilon)


class TestSpend:
    @pytest.mark.parametrize(
        ("sensitivity", "sigma", "spend"),
        [(1.0, 1.0, Fraction(1)), (3.0, 2.0, Fraction(9, 4)), (2.0**-10, 2.0, Fraction(1, 2**22))],
    )
    def test_exact_where_it_can_be(self, sensitivity: float, sigma: float, spend: Fraction) -> None:
        assert spend_of(sensitivity, sigma) == spend

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(sensitivity=st.floats(1e-6, 1e6), sigma=st.floats(1e-6, 1e6))
    def test_rounded_up_by_less_than_one_unit(self, sensitivity: float, sigma: float) -> None:
        excess = spend_of(sensitivity, sigma) - (Fraction(sensitivity) / Fraction(sigma)) ** 2
        assert 0 <= excess < Fraction(1, 2**128)

    def test_the_smallest_release_costs_something(self) -> None:
        assert spend_of(1e-100, 1e100) == Fraction(1, 2**128)

    def test_a_tiny_spend_is_not_lost_in_a_large_sum(self) -> None:
        large, tiny = spend_of(1e6, 1.0), spend_of(1e-9, 1.0)
        assert float(large) + float(tiny) == float(large)
        assert large + tiny > large


class TestTotal:
    @pytest.mark.parametrize("multipliers", [(4.224678889326835283,) * 4, (2.0, 3.0, 5.0, 8.0)])
    def test_four_releases_against_a_privacy_loss_distribution(
        self, multipliers: tuple[float, ...]
    ) -> None:
        whole, *others = (
            privacy_loss_distribution.from_gaussian_mechanism(
                multiplier,
                sensitivity=1,
                value_discretization_interval=1e-3,
                pessimistic_estimate=True,
            )
            for multiplier in multipliers
        )
        for other in others:
            whole = whole.compose(other)
        spent = sum((spend_of(1.0, each) for each in multipliers), Fraction(0))
        total = total_epsilon(spent, 1e-6)
        assert 0 <= whole.get_epsilon_for_delta(1e-6) - total <= 1e-4
        assert delta_of(spent, total) <= 1e-6
        assert total == pytest.approx(compose(multipliers, 1e-6), rel=1e-8)

    def test_nothing_spent(self) -> None:
        assert total_epsilon(Fraction(0), 1e-6) == 0.0


class TestFits:
    @pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
    @pytest.mark.parametrize("sensitivity", [1.0, 2 * math.sqrt(1796), 1e-3])
    def test_a_release_as_large_as_the_budget(
        self, epsilon: float, delta: float, sensitivity: float
    ) -> None:
        assert fits(release(epsilon, delta, sensitivity), epsilon, delta)

    @pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
    def test_a_millionth_more_does_not(self, epsilon: float, delta: float) -> None:
        assert not fits(release(epsilon * (1 + 1e-6), delta), epsilon, delta)

    @pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
    def test_a_full_budget_takes_no_second_release(self, epsilon: float, delta: float) -> None:
        spent = release(epsilon, delta)
        assert not fits(spent + release(1e-2 * epsilon, delta), epsilon, delta)

    def test_nothing_always_fits(self) -> None:
        assert fits(Fraction(0), 1e-6, 1e-300)

    def test_a_nan_budget_takes_nothing(self) -> None:
        assert not fits(Fraction(1, 10**9), math.nan, 1e-6)
        assert not fits(Fraction(1, 10**9), 1.0, math.nan)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(epsilon=epsilons, delta=deltas, share=st.floats(0.9, 1.1))
    def test_whatever_fits_is_within_the_budget(
        self, epsilon: float, delta: float, share: float
    ) -> None:
        spent = release(epsilon, delta) * Fraction(share)
        if fits(spent, epsilon, delta):
            assert delta_of(spent, epsilon) <= delta
        else:
            assert share > 1


class TestLargest:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        epsilon=epsilons,
        delta=deltas,
        share=st.floats(0, 0.99),
        request_delta=st.one_of(st.none(), deltas),
    )
    def test_it_fits_and_a_little_more_does_not(
        self, epsilon: float, delta: float, share: float, request_delta: float | None
    ) -> None:
        at = request_delta or delta
        spent = release(epsilon, delta) * Fraction(share)
        largest = largest_epsilon(spent, epsilon, delta, at)
        if largest > 0:
            assert fits(spent + release(largest, at), epsilon, delta)
        more = max(largest * (1 + 1e-5), 1.1e-6)
        assert not fits(spent + release(more, at), epsilon, delta)

    def test_an_untouched_budget_is_its_own_largest(self) -> None:
        assert largest_epsilon(Fraction(0), 20.0, 1e-5, 1e-5) == pytest.approx(20.0, rel=1e-7)

    def test_an_empty_budget_has_none(self) -> None:
        assert largest_epsilon(release(20.0, 1e-5), 20.0, 1e-5, 1e-6) == 0.0
        assert largest_epsilon(2 * release(20.0, 1e-5), 20.0, 1e-5, 1e-6) == 0.0
