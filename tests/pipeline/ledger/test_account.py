"""What an account's budget still allows, before anything is reserved."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from pipeline.ledger import Budget, SpendRequest, forecast_spend
from scoreshield.errors import ParameterError
from tests.harness.books import BUDGET, request


def test_before_there_is_an_account() -> None:
    outcome = forecast_spend(BUDGET, Fraction(0), request(8.0))
    assert outcome.fits
    assert outcome.spent_epsilon == 0.0
    assert outcome.remaining_epsilon == outcome.largest_epsilon == 20.0
    assert outcome.after_epsilon == pytest.approx(8.0, rel=1e-6)


def test_beyond_what_can_be_said() -> None:
    outcome = forecast_spend(BUDGET, Fraction(0), SpendRequest(1e6, 1e-5, 1e6, 1.0, "record"))
    assert not outcome.fits
    assert outcome.after_epsilon is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_request_without_meaning_is_refused(bad: float) -> None:
    with pytest.raises(ParameterError):
        SpendRequest(bad, 1e-6, 1.0, 1.0, "record")
    with pytest.raises(ParameterError, match="sensitivity must be"):
        SpendRequest(1.0, 1e-6, bad, 1.0, "record")
    with pytest.raises(ParameterError, match="sigma must be"):
        SpendRequest(1.0, 1e-6, 1.0, bad, "record")
    with pytest.raises(ParameterError):
        Budget(1.0, bad)
