"""Whether the numbers of a manifest agree with one another.

A signature proves who wrote a manifest, not that its numbers are true. Nearly all of them follow
from a few: sizes, adjacency, score range, σ, the grid, ε and δ. Those that follow are recomputed
here, so that a manifest can't claim a smaller loss than its own noise gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.errors import ParameterError
from scoreshield.manifest.schema import Manifest
from scoreshield.manifest.words import privacy_statement, privacy_unit
from scoreshield.mechanisms.gaussian import Guarantee, Mechanism
from scoreshield.noise.encoding import FLOAT32, integer_codes
from scoreshield.noise.sampler import LARGEST_RATIO
from scoreshield.privacy.accounting import spend_of, total_epsilon
from scoreshield.privacy.calibration import check_privacy, exact_delta_holds
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange, Sensitivity
from scoreshield.regimes.registry import REGIMES

# Far below what would matter to anybody. An ε is found by bisection, and another version of SciPy
# may find another neighbour of it.
_CLOSE, _CLOSE_EPSILON = 1e-9, 1e-6
_PRODUCT_EXPONENT = -2 * FRACTION_BITS
_LARGEST_EXPONENT = 128


def number_faults(manifest: Manifest) -> list[str]:
    """What the numbers of a manifest contradict; empty where they agree.

    For scores the queries are not at hand, so Δ is only held against its bounds over all queries.
    """
    try:
        mechanism = stated_mechanism(manifest)
    except ParameterError as error:
        return [str(error)]
    checks: tuple[Callable[[Manifest, Mechanism], Iterator[str]], ...] = (
        _noise_faults,
        _encoding_faults,
        _sensitivity_faults,
        _guarantee_faults,
        _implied_faults,
        _composition_faults,
        _word_faults,
        _forecast_faults,
    )
    faults: list[str] = []
    for check in checks:
        try:
            faults += check(manifest, mechanism)
        # Absurd numbers overflow, or lie outside the domain of what recomputes them.
        except (ValueError, ArithmeticError) as error:
            faults.append(f"a number is out of its domain: {error}")
    return faults


def stated_mechanism(manifest: Manifest) -> Mechanism:
    """The mechanism that a manifest describes; nothing of it is recomputed."""
    privacy, stated, shape = manifest.privacy, manifest.mechanism, manifest.shape
    implied = privacy.implied_record_replacement
    delta_of_record = Sensitivity(implied.mu * stated.sigma, "as stated")
    return Mechanism(
        manifest.regime,
        shape.n,
        shape.d,
        shape.m,
        ScoreRange(*stated.score_range),
        Guarantee(
            Adjacency(privacy.adjacency, privacy.radius),
            Sensitivity(stated.sensitivity.value, stated.sensitivity.derivation),
            privacy.mu,
            privacy.epsilon,
            privacy.delta,
        ),
        Guarantee(Adjacency(), delta_of_record, implied.mu, implied.epsilon, implied.delta),
        stated.sigma,
        stated.grid_exponent,
    )


def _noise_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    stated = manifest.mechanism
    if not _PRODUCT_EXPONENT <= stated.grid_exponent <= _LARGEST_EXPONENT:
        yield (
            f"grid_exponent is {stated.grid_exponent}, expected {_PRODUCT_EXPONENT} to "
            f"{_LARGEST_EXPONENT}"
        )
        return
    if stated.grid != mechanism.grid:
        yield f"grid is {stated.grid!r}, expected 2^{stated.grid_exponent} = {mechanism.grid!r}"
    if stated.fraction_bits != FRACTION_BITS:
        yield f"fraction_bits is {stated.fraction_bits}, expected {FRACTION_BITS}"
    if mechanism.ratio > LARGEST_RATIO:
        yield f"sigma is {mechanism.ratio:.3g} grid steps, expected at most {LARGEST_RATIO:.3g}"
    multiplier = stated.sigma / stated.sensitivity.value
    if not _close(stated.noise_multiplier, multiplier):
        yield (
            f"noise_multiplier is {stated.noise_multiplier!r}, sigma / sensitivity is "
            f"{multiplier!r}"
        )


def _encoding_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    noisy, sigma = manifest.noisy, mechanism.sigma
    if noisy is None:
        return
    encoding = FLOAT32 if noisy.dtype == "float32" else integer_codes(noisy.dtype, sigma)
    if noisy.step != encoding.step:
        yield f"noisy.step is {noisy.step!r}, {noisy.dtype} at this sigma has {encoding.step!r}"
    if noisy.rounding != encoding.described(sigma):
        yield "noisy.rounding does not say what the numbers say"


def _sensitivity_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    stated = manifest.mechanism.sensitivity.value
    low, high = _sensitivity_bounds(mechanism, mechanism.guarantee.adjacency)
    if not _within(stated, low, high):
        yield f"sensitivity is {stated!r}, expected {_shown_bounds(low, high)}"


def _guarantee_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    guarantee, sigma = mechanism.guarantee, mechanism.sigma
    check_privacy(guarantee.epsilon, guarantee.delta)
    least = Fraction(guarantee.sensitivity.value) / Fraction(sigma)
    if Fraction(guarantee.mu) < least or not _close(guarantee.mu, float(least)):
        yield f"mu is {guarantee.mu!r}, expected sensitivity / sigma = {float(least)!r}, rounded up"
    if not exact_delta_holds(guarantee.mu, guarantee.epsilon, guarantee.delta):
        yield (
            f"mu = {guarantee.mu!r} does not give epsilon = {guarantee.epsilon!r} at delta = "
            f"{guarantee.delta!r}"
        )


def _implied_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    guarantee, implied = mechanism.guarantee, mechanism.implied
    same = (implied.mu, implied.epsilon) == (guarantee.mu, guarantee.epsilon)
    if guarantee.adjacency.kind == "record" and not same:
        yield "implied_record_replacement differs from the guarantee, which is that already"
    low, high = _sensitivity_bounds(mechanism, Adjacency("record"))
    if not _within(implied.mu, low / mechanism.sigma, high / mechanism.sigma):
        yield (
            f"implied_record_replacement.mu is {implied.mu!r}, expected "
            f"{_shown_bounds(low / mechanism.sigma, high / mechanism.sigma)}"
        )
    if implied.delta != guarantee.delta:
        yield f"implied_record_replacement.delta is {implied.delta!r}, not {guarantee.delta!r}"
    if not exact_delta_holds(implied.mu, implied.epsilon, implied.delta):
        yield (
            f"implied_record_replacement.mu = {implied.mu!r} does not give epsilon = "
            f"{implied.epsilon!r}"
        )


def _sensitivity_bounds(mechanism: Mechanism, adjacency: Adjacency) -> tuple[float, float]:
    """The least and the largest Δ that such a release can have; equal for a Gram matrix."""
    coarse = mechanism.grid_exponent > _PRODUCT_EXPONENT
    rounding = mechanism.grid if coarse else 0.0
    return REGIMES[mechanism.regime].sensitivity_bounds(mechanism, adjacency, rounding)


def _composition_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    composition = manifest.composition
    if composition is None:
        return
    spend = spend_of(mechanism.guarantee.sensitivity.value, mechanism.sigma)
    before = Fraction(composition.spent_before.mu_squared)
    after = Fraction(composition.spent_after.mu_squared)
    if after != before + spend:
        yield (
            f"composition.spent_after is mu^2 = {float(after)!r}, expected spent_before and this "
            f"release together, {float(before + spend)!r}"
        )
    for name in ("spent_before", "spent_after"):
        spent = getattr(composition, name)
        epsilon = total_epsilon(Fraction(spent.mu_squared), composition.budget_delta)
        if not _close(spent.epsilon, epsilon, _CLOSE_EPSILON):
            yield f"composition.{name}.epsilon is {spent.epsilon!r}, its mu^2 gives {epsilon!r}"


def _word_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    privacy, reason = manifest.privacy, manifest.not_private_reason
    if manifest.private != (reason is None):
        yield f"private is {manifest.private} and not_private_reason is {reason!r}"
    if privacy.privacy_unit != privacy_unit(mechanism.guarantee, privacy.record_kind):
        yield "privacy_unit is not that of the adjacency"
    if privacy.statement != privacy_statement(mechanism, reason, privacy.record_kind):
        yield "statement does not say what the numbers say"


def _forecast_faults(manifest: Manifest, mechanism: Mechanism) -> Iterator[str]:
    stated = manifest.forecast
    regime = REGIMES[mechanism.regime]
    if (stated is None) == regime.states_forecast:
        found = "missing" if stated is None else "out of place"
        yield f"forecast is {found} in regime {mechanism.regime}"
    if stated is None or not regime.states_forecast:
        return
    expected = regime.forecast(mechanism)
    for name, value in vars(expected).items():
        if not _close(getattr(stated, name), value, _CLOSE_EPSILON):
            yield f"forecast.{name} is {getattr(stated, name)!r}, expected {value!r}"
    if stated.carries_signal != expected.carries_signal:
        yield f"forecast.carries_signal is {stated.carries_signal}"


def _close(found: float, expected: float, tolerance: float = _CLOSE) -> bool:
    return math.isclose(found, expected, rel_tol=tolerance)


def _within(found: float, low: float, high: float) -> bool:
    return low * (1 - _CLOSE) <= found <= high * (1 + _CLOSE)


def _shown_bounds(low: float, high: float) -> str:
    return f"{low!r}" if low == high else f"{low!r} to {high!r}"
