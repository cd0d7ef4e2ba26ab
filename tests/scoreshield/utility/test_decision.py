"""Decision-level forecasts against draws of the real sampler and against real scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from scoreshield.errors import InputRejected, ParameterError
from scoreshield.privacy.sensitivity import FULL_RANGE, ScoreRange
from scoreshield.utility.decision import (
    acceptance_probability,
    auc_deviation_bound,
    expected_auc,
    expected_roc,
    flip_probability,
    lipschitz_constant,
    rate_deviation_bound,
    recalibrated_threshold,
    threshold_at_rate,
)
from scoreshield.utility.metrics import auc
from tests.harness.gaussian import standard_normal

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
UNIT = ScoreRange(0.0, 1.0)
NO_SIGMAS = [0.0, -1.0, math.nan, math.inf]
NO_RATES = [0.0, 1.0, -0.1, 1.1, math.nan]

FloatArray = NDArray[np.float64]


@pytest.fixture(scope="module")
def million() -> FloatArray:
    return standard_normal(1, "decision").ravel()


def standard_error(p: float, count: int) -> float:
    return math.sqrt(max(p * (1 - p), 1 / count) / count)


# Flips.


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("score_range", [FULL_RANGE, UNIT])
def test_flips_match_a_million_releases(
    million: FloatArray, sigma: float, score_range: ScoreRange
) -> None:
    for score in (0.0, 0.3, 0.95, 1.0):
        released = np.clip(score + sigma * million, score_range.low, score_range.high)
        for margin in (-2.0, -0.3, -0.05, -0.005, 0.0, 0.005, 0.05, 0.3, 1.0):
            threshold = score + margin
            flips = np.mean((released >= threshold) != (score >= threshold))
            p = float(flip_probability(score, threshold, sigma, score_range=score_range))
            assert abs(flips - p) <= 5 * standard_error(p, million.size), (score, margin)


def test_flips_at_the_ends_of_the_range_are_exact() -> None:
    for threshold in (-1.0, -1.5, 1.0 + 1e-12, 3.0):
        assert flip_probability(0.2, threshold, 5.0) == 0
    # The atom at 1 is accepted at t = 1: P(r ≥ 1) = Φ((s − 1)/σ), not 0.
    assert flip_probability(0.0, 1.0, 1.0) == pytest.approx(0.15865525393145707, rel=1e-14)
    assert acceptance_probability(0.0, 1.0, 1.0) == pytest.approx(0.15865525393145707, rel=1e-14)
    assert acceptance_probability(0.0, -1.0, 1.0) == 1
    assert acceptance_probability(0.0, math.nextafter(1.0, 2.0), 1.0) == 0
    assert acceptance_probability(0.3, 0.0, 1.0, UNIT) == 1


@given(st.floats(-1, 1), st.floats(-0.999, 1), st.floats(1e-3, 100))
def test_a_flip_depends_on_margin_over_sigma_alone(s: float, t: float, sigma: float) -> None:
    p = float(flip_probability(s, t, sigma))
    assert p == pytest.approx(0.5 * math.erfc(abs(s - t) / sigma / math.sqrt(2)), rel=1e-11)
    assert 0 <= p <= 0.5


def test_flips_against_a_recalibrated_threshold(million: FloatArray) -> None:
    scores = np.array([0.1, 0.5, 0.9])
    p = flip_probability(scores, 0.4, 0.3, released_threshold=0.7)
    for score, expected in zip(scores, p, strict=True):
        released = np.clip(score + 0.3 * million, -1, 1)
        flips = np.mean((released >= 0.7) != (score >= 0.4))
        assert abs(flips - expected) <= 5 * standard_error(float(expected), million.size)
    beyond = flip_probability(scores, 0.4, 0.3, released_threshold=1.5)
    assert beyond.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("refuses", "values", "complaint"),
    [
        (lambda sigma: flip_probability(0.1, 0.2, sigma), NO_SIGMAS, "sigma must be positive and"),
        (lambda sigma: expected_auc([0.1], [0.2], sigma), NO_SIGMAS, "sigma must be positive and"),
        (lambda score: flip_probability(score, 0.2, 1.0), [math.nan], "scores hold NaN"),
        (lambda at: flip_probability(0.1, at, 1.0), [math.nan], "thresholds hold NaN"),
        (lambda rate: recalibrated_threshold([0.1], 1.0, rate), NO_RATES, "strictly between 0 and"),
        (lambda rate: threshold_at_rate([0.1], rate), NO_RATES, "strictly between 0 and 1"),
        (lambda resolution: lipschitz_constant([0.1], resolution), [0.0], "must be positive"),
        (lambda steep: rate_deviation_bound(0.1, steep), [-1.0], "lipschitz must be .*found -1"),
    ],
)
def test_values_outside_their_domain_are_refused(
    refuses: Callable[[float], object], values: list[float], complaint: str
) -> None:
    for value in values:
        with pytest.raises(ParameterError, match=complaint):
            refuses(value)


# Thresholds.


def impostors(count: int, seed: int) -> FloatArray:
    """Clean impostor scores of a skewed continuous distribution within [-1, 1]."""
    return 2 * np.random.default_rng(seed).beta(4, 5, count) - 1


@pytest.fixture(scope="module")
def two_samples() -> tuple[FloatArray, FloatArray]:
    """Two independent sets of draws, eight for each of 2^20 scores."""
    return standard_normal(8, "sample").reshape(8, -1), standard_normal(8, "held out").reshape(
        8, -1
    )


@pytest.mark.parametrize(
    ("sigma", "rate"), [(0.05, 0.01), (0.2, 0.01), (0.2, 0.3), (0.4, 0.05), (0.4, 0.9)]
)
def test_thresholds_restore_the_rate_on_held_out_draws(
    sigma: float, rate: float, two_samples: tuple[FloatArray, FloatArray]
) -> None:
    """Within 1 %: at a rate of 0.01, 8 million draws leave a standard error of 0.34 %."""
    repeats = 8 if rate < 0.02 else 2
    z, held_out = two_samples[0][:repeats], two_samples[1][:repeats]
    clean = impostors(2**17, seed=1)
    known = recalibrated_threshold(clean, sigma, rate)
    assert known.rate == pytest.approx(rate, rel=1e-9)
    released = np.clip(np.tile(clean, 8) + sigma * held_out, -1, 1)
    assert np.mean(released >= known.threshold) == pytest.approx(rate, rel=0.01)

    sample = np.clip(impostors(2**20, seed=2) + sigma * z, -1, 1)
    others = np.clip(impostors(2**20, seed=3) + sigma * held_out, -1, 1)
    free = threshold_at_rate(sample, rate)
    assert np.mean(others >= free.threshold) == pytest.approx(rate, rel=0.01)
    assert free.threshold == pytest.approx(known.threshold, abs=0.01)
    # Control: the clean scores' own threshold misses the rate.
    assert abs(np.mean(others >= np.quantile(clean, 1 - rate)) / rate - 1) > 0.03


def test_the_rate_falls_strictly_so_a_threshold_is_unique() -> None:
    clean = impostors(500, seed=4)
    point = recalibrated_threshold(clean, 0.5, 0.3)
    low, high = point.lowest, point.highest
    rates = np.linspace(low, high, 41)[:-1]
    thresholds = [recalibrated_threshold(clean, 0.5, float(rate)).threshold for rate in rates]
    assert np.all(np.diff(thresholds) < 0)
    assert thresholds[0] == pytest.approx(1.0, abs=1e-12)
    assert low == pytest.approx(np.mean(acceptance_probability(clean, 1.0, 0.5)))
    assert high == pytest.approx(
        np.mean(acceptance_probability(clean, math.nextafter(-1.0, 0), 0.5))
    )


@pytest.mark.parametrize(("rate", "end"), [(0.05, "1"), (0.97, "-1")])
def test_rates_inside_an_atom_are_refused(rate: float, end: str, million: FloatArray) -> None:
    """At σ = 2 some 30 % of released scores sit at either end of the range."""
    clean = impostors(2**10, seed=5)
    words = rf"no threshold accepts a share of {rate:g}: .* are clipped to {end}, all of which"
    with pytest.raises(ParameterError, match=words):
        recalibrated_threshold(clean, 2.0, rate)
    released = np.clip(np.tile(clean, 2**10) + 2.0 * million, -1, 1)
    with pytest.raises(ParameterError, match=words):
        threshold_at_rate(released, rate)


def test_the_rate_of_a_whole_atom_is_reachable() -> None:
    clean = impostors(400, seed=6)
    share = float(np.mean(acceptance_probability(clean, 1.0, 1.0)))
    assert recalibrated_threshold(clean, 1.0, share).threshold == pytest.approx(1.0, abs=1e-12)
    released = [1.0, 1.0, 1.0, 0.5, 0.2, -1.0, -1.0, 0.1, 0.0, 0.3]
    point = threshold_at_rate(released, 0.3)
    assert (point.threshold, point.rate, point.lowest, point.highest) == (0.75, 0.3, 0.3, 0.8)
    assert threshold_at_rate(released, 0.5).threshold == pytest.approx(0.25)
    with pytest.raises(ParameterError, match=r"clipped to 1,.*from 0.3 to just below 0.8"):
        threshold_at_rate(released, 0.2)
    with pytest.raises(ParameterError, match=r"clipped to -1,"):
        threshold_at_rate(released, 0.9)


def test_too_few_scores_are_told() -> None:
    with pytest.raises(ParameterError, match=r"nearest rate of any threshold is 0.2; .*more"):
        threshold_at_rate([0.1, 0.2, 0.3, 0.4, 0.5], 0.25)


def test_thresholds_refuse_no_scores() -> None:
    with pytest.raises(InputRejected, match="clean scores: none"):
        recalibrated_threshold([], 1.0, 0.5)
    with pytest.raises(InputRejected, match="released scores: 1 of 1 not finite"):
        threshold_at_rate([math.nan], 0.5)


# ROC and AUC.


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("score_range", [FULL_RANGE, UNIT])
def test_expected_curves_match_simulated_releases(sigma: float, score_range: ScoreRange) -> None:
    generator = np.random.default_rng(7)
    genuine, impostor = generator.uniform(0.2, 1, 80), generator.uniform(-0.3, 0.7, 120)
    draws = standard_normal(1, "decision")[0, :800, :200]
    low, high = score_range.low, score_range.high
    clean = np.clip(np.concatenate([genuine, impostor]), low, high)
    released = np.clip(clean + sigma * draws, low, high)
    areas = mannwhitneyu(released[:, :80], released[:, 80:], axis=1).statistic / (80 * 120)
    expected = expected_auc(genuine, impostor, sigma, score_range)
    assert abs(np.mean(areas) - expected) < 4 * np.std(areas) / math.sqrt(len(areas))
    ends = [math.inf, *np.linspace(high, low, 4001)]
    curve = expected_roc(genuine[:8], impostor[:8], sigma, ends, score_range)
    assert curve.area == pytest.approx(
        expected_auc(genuine[:8], impostor[:8], sigma, score_range), abs=1e-5
    )


def test_without_clipping_the_auc_is_that_of_normal_differences() -> None:
    """Far from both ends, AUC = mean Φ((g − i)/(√2σ))."""
    genuine, impostor = np.array([0.1, 0.05, -0.02]), np.array([0.0, -0.1])
    differences = (genuine[:, None] - impostor) / (math.sqrt(2) * 0.03)
    exact = np.mean([0.5 * math.erfc(-x / math.sqrt(2)) for x in differences.ravel()])
    assert expected_auc(genuine, impostor, 0.03) == pytest.approx(exact, abs=1e-13)


def test_the_bounds_hold_and_are_first_order_tight() -> None:
    """At the end of a uniform distribution the rate moves by half of what the bound allows."""
    genuine = (np.arange(20_000) + 0.5) / 40_000
    for sigma in (1e-3, 1e-2, 0.05):
        p = float(np.mean(acceptance_probability(genuine, 0.5, sigma)))
        # L·E max(σZ, 0) = Lσ/√(2π), with L = 2.
        assert p == pytest.approx(rate_deviation_bound(sigma, 2.0) / 2, rel=0.01)
    assert rate_deviation_bound(0.0, 5.0) == 0
    assert rate_deviation_bound(100.0, 5.0) == 1


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=40),
    st.lists(st.floats(-1, 1), min_size=1, max_size=40),
    st.floats(0.02, 3.0),
    st.floats(0.01, 0.5),
)
@settings(max_examples=60, deadline=None)
def test_the_bounds_hold_for_any_sample(
    genuine: list[float], impostor: list[float], sigma: float, resolution: float
) -> None:
    steep = lipschitz_constant(genuine, resolution), lipschitz_constant(impostor, resolution)
    deviation = abs(expected_auc(genuine, impostor, sigma) - auc(genuine, impostor))
    assert deviation <= auc_deviation_bound(sigma, *steep, resolution) + 1e-12
    thresholds = np.concatenate([genuine, np.linspace(-1.2, 1.2, 25)])
    for scores, lipschitz in ((genuine, steep[0]), (impostor, steep[1])):
        clean = np.mean(np.asarray(scores) >= thresholds[:, None], axis=1)
        noisy = np.mean(
            acceptance_probability(np.asarray(scores), thresholds[:, None], sigma), axis=1
        )
        bound = rate_deviation_bound(sigma, lipschitz, resolution)
        assert np.abs(clean - noisy).max() <= bound + 1e-12


def test_the_steepness_of_a_sample_by_hand() -> None:
    # A window of length 0.25 holds at most three of the four scores.
    assert lipschitz_constant([0.0, 0.125, 0.25, 0.75], 0.25) == pytest.approx(3 / 4 / 0.25)
    uniform = np.linspace(0, 1, 100_001)
    assert lipschitz_constant(uniform, 0.05) == pytest.approx(1.0, rel=1e-3)


def stsb(folder: Path) -> tuple[FloatArray, FloatArray]:
    pairs = np.load(folder / "dev_pairs_idx.npy")
    sentences = np.load(folder / "dev_unique_emb_f32.npy").astype(np.float64)
    scores = np.einsum("ij,ij->i", sentences[pairs[:, 0]], sentences[pairs[:, 1]])
    similar = np.load(folder / "dev_gold.npy") >= 3
    return scores[similar], scores[~similar]


def xquad(folder: Path) -> tuple[FloatArray, FloatArray]:
    questions = np.load(folder / "questions_emb_f32.npy").astype(np.float64)
    passages = np.load(folder / "passages_emb_f32.npy").astype(np.float64)
    scores = questions @ passages.T
    other = np.arange(passages.shape[0]) != np.load(folder / "gold_passage.npy")[:, None]
    return scores[~other], scores[other][::40]


@pytest.mark.parametrize(("data", "name"), [(stsb, "stsb-dev"), (xquad, "xquad-en")])
def test_real_auc_deviates_less_than_the_bound(
    data: Callable[[Path], tuple[FloatArray, FloatArray]], name: str
) -> None:
    """At 20 values of σ: in expectation, and for one release of the real sampler."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the repository")
    genuine, impostor = data(DATA / name)
    clean = auc(genuine, impostor)
    assert clean > 0.8
    scores = np.concatenate([genuine, impostor])
    z = standard_normal(1, "real").ravel()[: scores.size]
    bounds = []
    for sigma in np.geomspace(0.006, 1.0, 20):
        bound = min(
            auc_deviation_bound(
                sigma, lipschitz_constant(genuine, h), lipschitz_constant(impostor, h), h
            )
            for h in (0.005, 0.02, 0.08)
        )
        expected = abs(expected_auc(genuine, impostor, sigma) - clean)
        assert expected <= bound
        released = np.clip(scores + sigma * z, -1, 1)
        measured = abs(auc(released[: genuine.size], released[genuine.size :]) - clean)
        assert measured <= bound
        # The variance of an AUC is below 1/(4·min(sizes)) (Birnbaum & Klose 1957).
        assert abs(measured - expected) < 2 / math.sqrt(min(genuine.size, impostor.size))
        bounds.append(bound)
    assert sum(bound < 1 for bound in bounds) >= 12
