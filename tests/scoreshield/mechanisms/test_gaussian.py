"""Calibrated settings, and blocks whose every value is grid · (rounded clean value + noise)."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from scoreshield.arithmetic.fixedpoint import exact_products, to_fixed, to_integers
from scoreshield.errors import InputRejected, ParameterError
from scoreshield.mechanisms.gaussian import Guarantee, Mechanism, noisy_block, sufficient_epsilon
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores
from scoreshield.noise import sampler as noise
from scoreshield.privacy.calibration import exact_delta_holds, smallest_epsilon
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange

KEY = bytes(range(1, 33))
DELTA = 1e-6


def gallery(n: int, d: int, seed: int = 0) -> NDArray[np.float32]:
    return to_fixed(np.random.default_rng(seed).standard_normal((n, d)))


def with_noise(mechanism: Mechanism, sigma: float, grid_exponent: int) -> Mechanism:
    """The same release with any noise: for tests that need values float32 holds exactly."""
    return dataclasses.replace(mechanism, sigma=sigma, grid_exponent=grid_exponent)


def assembled(mechanism: Mechanism, rows: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """The whole noisy Gram matrix from blocks of one side, upper blocks mirrored."""
    n = len(rows)
    whole = np.full((n, n), np.nan, dtype=np.float32)
    for i in range(0, n, side):
        for j in range(i, n, side):
            block = noisy_block(
                mechanism, rows[i : i + side], rows[j : j + side], i, j, KEY, "release"
            )
            whole[i : i + side, j : j + side] = block
            whole[j : j + side, i : i + side] = block.T
    return whole


# Settings.


@pytest.mark.parametrize(
    ("n", "epsilon"),
    [(2, 1e-3), (10_000, 0.1), (10**6, 1.0), (10_000, 8.0), (10_000, 1e3), (2, 1e6), (10_000, 1e6)],
)
@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.4])
@pytest.mark.parametrize(
    "adjacency",
    [
        None,
        Adjacency("shift", 1e-3),
        Adjacency("output", 1e-6),
        Adjacency("output", 1e-12),
        Adjacency("output", 500.0),
    ],
)
def test_calibrated_settings_are_certified(
    n: int, epsilon: float, delta: float, adjacency: Adjacency | None
) -> None:
    mechanism = calibrate_gram(n, 64, epsilon, delta, adjacency)
    for guarantee in (mechanism.guarantee, mechanism.implied):
        assert_certified(guarantee, mechanism)
    assert mechanism.guarantee.epsilon == epsilon
    assert mechanism.implied.adjacency.kind == "record"
    assert Fraction(mechanism.ratio) * Fraction(mechanism.grid) == Fraction(mechanism.sigma)
    multiplier = mechanism.sigma / mechanism.guarantee.sensitivity.value
    grid_share = multiplier * math.sqrt(n - 1) / 2**20
    assert mechanism.grid == 2.0**-48 or 2.0**20 <= mechanism.ratio <= 2.0**21 * (1 + grid_share)
    assert mechanism.ratio <= noise.LARGEST_RATIO


def assert_certified(guarantee: Guarantee, mechanism: Mechanism) -> None:
    product = Fraction(guarantee.mu) * Fraction(mechanism.sigma)
    exact = Fraction(guarantee.sensitivity.value)
    assert exact <= product <= exact * (1 + Fraction(1, 2**49))
    assert exact_delta_holds(guarantee.mu, guarantee.epsilon, guarantee.delta)


def test_the_sensitivity_counts_the_grid_that_is_used() -> None:
    for epsilon in (1e-4, 0.1, 8.0, 1e6):
        mechanism = calibrate_gram(1000, 8, epsilon, DELTA)
        exact = (2 + Fraction(mechanism.grid)) ** 2 * 999
        square = Fraction(mechanism.guarantee.sensitivity.value) ** 2
        assert exact <= square <= exact * (1 + Fraction(1, 2**44))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_a_smaller_sigma_is_not_certified(epsilon: float) -> None:
    """Control: σ × 0.9 breaks the guarantee, and so does σ × 0.999999."""
    guarantee = calibrate_gram(1797, 64, epsilon, DELTA).guarantee
    for factor in (0.9, 0.999999):
        assert not exact_delta_holds(guarantee.mu / factor, epsilon, DELTA)


def test_what_other_adjacencies_imply_for_a_full_replacement() -> None:
    for adjacency in (Adjacency("shift", 0.5), Adjacency("output", 20.0)):
        mechanism = calibrate_gram(1000, 16, 2.0, DELTA, adjacency)
        implied = mechanism.implied
        assert implied.mu == pytest.approx(2 * math.sqrt(999) / mechanism.sigma, rel=1e-4)
        assert implied.epsilon > mechanism.guarantee.epsilon
        assert exact_delta_holds(implied.mu, implied.epsilon, DELTA)
        assert not exact_delta_holds(implied.mu, implied.epsilon * 0.999, DELTA)
    record = calibrate_gram(1000, 16, 2.0, DELTA)
    assert record.implied == record.guarantee


def test_a_tiny_radius_is_released_with_the_vast_epsilon_it_implies() -> None:
    """A small radius on a large gallery implies an ε beyond what calibration certifies."""
    mechanism = calibrate_gram(100_000, 64, 8.0, DELTA, Adjacency("output", 1e-3))
    assert mechanism.implied.epsilon > 1e11
    assert exact_delta_holds(mechanism.implied.mu, mechanism.implied.epsilon, DELTA)


@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.4, 0.9])
def test_an_epsilon_suffices_for_every_mu(delta: float) -> None:
    for mu in (0.3, 3.0, 1300.0, 1500.0, 1e6, 1e12):
        epsilon = sufficient_epsilon(mu, delta)
        assert exact_delta_holds(mu, epsilon, delta)
    assert sufficient_epsilon(3.0, delta) == smallest_epsilon(3.0, delta)


def test_scores_settings() -> None:
    queries = gallery(5, 12, seed=1)
    for adjacency in (None, Adjacency("shift", 0.1), Adjacency("output", 3.0)):
        mechanism = calibrate_scores(40, queries, 1.0, DELTA, adjacency)
        assert (mechanism.regime, mechanism.n, mechanism.d, mechanism.m) == ("scores", 40, 12, 5)
        for guarantee in (mechanism.guarantee, mechanism.implied):
            assert_certified(guarantee, mechanism)
    half = calibrate_scores(40, queries[:1], 1.0, DELTA, None, ScoreRange(0, 1))
    full = calibrate_scores(40, queries[:1], 1.0, DELTA)
    assert half.sigma == pytest.approx(full.sigma / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("n", "d", "epsilon", "delta", "complaint"),
    [
        (1, 8, 1.0, DELTA, "at least 2 records, found 1"),
        (0, 8, 1.0, DELTA, "at least 2 records, found 0"),
        (10, 0, 1.0, DELTA, "1 to 2147483647 features, found 0"),
        (10, 2**31, 1.0, DELTA, "1 to 2147483647 features, found 2147483648"),
        *((10, 8, epsilon, DELTA, "epsilon must lie in") for epsilon in (0.0, -1.0, math.inf)),
        (10, 8, math.nan, DELTA, "epsilon must lie in .* found nan"),
        *((10, 8, 1.0, delta, "delta must lie in") for delta in (0.0, 1.0)),
        (10, 8, 1.0, math.nan, "delta must lie in .* found nan"),
        (100_000, 8, 1e-6, DELTA, "needs sigma=.*Raise epsilon"),
    ],
)
def test_what_cannot_be_certified_is_refused(
    n: int, d: int, epsilon: float, delta: float, complaint: str
) -> None:
    with pytest.raises(ParameterError, match=complaint):
        calibrate_gram(n, d, epsilon, delta)


@pytest.mark.parametrize("radius", [1e32, 1e300, 1.7e308])
def test_noise_that_overflows_the_released_type_is_refused(radius: float) -> None:
    with pytest.raises(ParameterError, match=r"sigma=.*check the radius"):
        calibrate_gram(10, 8, 1.0, DELTA, Adjacency("output", radius))


def test_scores_refuse_what_their_sensitivity_does_not_cover() -> None:
    with pytest.raises(ParameterError, match="0 queries and 5 records"):
        calibrate_scores(5, np.empty((0, 4), dtype=np.float32), 1.0, DELTA)
    with pytest.raises(ParameterError, match="1 queries and 0 records"):
        calibrate_scores(0, gallery(1, 4), 1.0, DELTA)
    for value in (5.0, 0.1, np.nan):
        with pytest.raises(InputRejected):
            calibrate_scores(5, np.full((1, 4), value, dtype=np.float32), 1.0, DELTA)


# Blocks.


def test_a_gram_is_the_same_bits_for_any_block_side() -> None:
    """Blocks of side 700 meet tile corners in every way; position alone decides."""
    rows = gallery(2500, 24)
    mechanism = calibrate_gram(2500, 24, 8.0, DELTA)
    whole = assembled(mechanism, rows, 4096)
    for side, threads in ((256, 2), (700, 1), (1000, 1)):
        with threadpool_limits(threads, user_api="blas"):
            assert assembled(mechanism, rows, side).tobytes() == whole.tobytes()
    assert np.array_equal(whole, whole.T)
    assert np.all(np.diag(whole) == 1)
    error = (whole - rows @ rows.T)[np.triu_indices(2500, 1)].astype(np.float64)
    statistical = mechanism.sigma / math.sqrt(error.size)
    assert abs(error.mean()) < 4 * statistical
    assert abs(error.std() - mechanism.sigma) < 4 * statistical / math.sqrt(2)


@given(st.integers(2, 90), st.integers(1, 60), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_small_grams_are_the_same_bits_for_any_block_side(n: int, side: int, seed: int) -> None:
    rows = gallery(n, 3, seed)
    mechanism = calibrate_gram(n, 3, 2.0, DELTA, None, ScoreRange(-0.5, 0.75))
    assert assembled(mechanism, rows, side).tobytes() == assembled(mechanism, rows, n).tobytes()


@pytest.mark.parametrize(("grid_exponent", "sigma_in_grids"), [(-10, 5.3), (-14, 0.3), (-3, 40.0)])
def test_each_value_is_the_grid_times_an_integer(grid_exponent: int, sigma_in_grids: float) -> None:
    """With a coarse grid the float32 cast is exact, so the sum can be read back."""
    rows = gallery(300, 6)
    grid = 2.0**grid_exponent
    mechanism = with_noise(calibrate_gram(300, 6, 1.0, DELTA), sigma_in_grids * grid, grid_exponent)
    integers = assembled(mechanism, rows, 300).astype(np.float64) / grid
    assert np.array_equal(integers, np.rint(integers))
    key = noise.tile_key(KEY, "release", "gram", 0, 0)
    k = noise.tile_noise(key, sigma_in_grids, slice(0, 300), slice(0, 300))
    exact = rows.astype(np.float64) * 2**24
    for i, j in np.random.default_rng(0).integers(0, 300, (300, 2)):
        if i < j:
            product = sum(int(a) * int(b) for a, b in zip(exact[i], exact[j], strict=True))
            clean = round(Fraction(product, 2**48) / Fraction(grid))
            assert integers[i, j] == clean + k[i, j]
            assert integers[j, i] == integers[i, j]


def test_the_noise_uses_the_tile_of_its_position() -> None:
    rows = gallery(1100, 3)
    mechanism = with_noise(calibrate_gram(1100, 3, 1.0, DELTA), 2.0**-6, -10)
    found = (
        noisy_block(mechanism, rows[1020:1030], rows[1030:1090], 1020, 1030, KEY, "r") / 2.0**-10
    )
    clean = np.rint(
        exact_products(to_integers(rows[1020:1030]), to_integers(rows[1030:1090])) * 2.0**-38
    )
    for part, tile_row, inside in (
        (slice(0, 4), 0, slice(1020, 1024)),
        (slice(4, 10), 1, slice(0, 6)),
    ):
        key = noise.tile_key(KEY, "r", "gram", tile_row, 1)
        k = noise.tile_noise(key, 16.0, inside, slice(6, 66))
        assert np.array_equal(found[part] - clean[part], k)


def test_the_score_range_is_enforced_before_the_noise() -> None:
    rows = gallery(200, 3)
    # A grid of 2^-20 and little noise: every released value fits 24 bits.
    plain = with_noise(calibrate_gram(200, 3, 1.0, DELTA), 2.0**-22, -20)
    clipped = dataclasses.replace(plain, score_range=ScoreRange(0.0, 0.5))
    one, other = assembled(plain, rows, 200), assembled(clipped, rows, 200)
    clean = exact_products(to_integers(rows), to_integers(rows)) * 2.0**-48
    upper = np.triu_indices(200, 1)
    low, high = (clean < -0.01)[upper], (clean > 0.51)[upper]
    assert low.sum() > 1000
    assert high.sum() > 1000
    released = other[upper].astype(np.float64)
    assert np.abs(released[low]).max() < 8 * 2.0**-22
    assert np.abs(released[high] - 0.5).max() < 8 * 2.0**-22
    inside = ((clean > 0.01) & (clean < 0.49))[upper]
    assert np.array_equal(one[upper][inside], other[upper][inside])
    noise_of_clipped = released[low] / 2.0**-20
    assert np.array_equal(noise_of_clipped, np.rint(noise_of_clipped))
    assert np.any(noise_of_clipped != 0)


def test_a_score_range_narrower_than_the_products_stays_inside_its_width() -> None:
    mechanism = calibrate_gram(20, 3, 1e6, DELTA, None, ScoreRange(0.1, math.nextafter(0.1, 1)))
    released = assembled(mechanism, gallery(20, 3), 20)[np.triu_indices(20, 1)]
    assert np.abs(released - 0.1).max() < 1e-7


def test_a_released_zero_does_not_tell_the_sign_of_the_clean_value() -> None:
    """−0.0 would appear only where the clean value lies in (−g/2, −0.0]."""
    slightly = to_fixed(np.array([[-1e-7, 1.0], [1e-7, 1.0], [0.0, 1.0], [-0.0, -1.0]]))
    left = np.repeat(to_fixed(np.array([[1.0, 0.0], [-1.0, 0.0]])), 100, axis=0)
    mechanism = with_noise(calibrate_gram(900, 2, 1.0, DELTA), 0.3 * 2.0**-20, -20)
    scores = with_noise(calibrate_scores(900, left, 1.0, DELTA), 0.3 * 2.0**-20, -20)
    for release, ranged in ((mechanism, False), (mechanism, True), (scores, False)):
        settings_used = dataclasses.replace(
            release, score_range=ScoreRange(0.0, 1.0) if ranged else release.score_range
        )
        released = noisy_block(
            settings_used, left, np.repeat(slightly, 100, axis=0), 0, 500, KEY, "r"
        )
        assert np.sum(released == 0) > 1000
        assert not np.any(np.signbit(released) & (released == 0))


def test_scores_depend_on_position_alone() -> None:
    queries, rows = gallery(30, 8, seed=1), gallery(1500, 8)
    mechanism = calibrate_scores(1500, queries, 2.0, DELTA)
    whole = noisy_block(mechanism, queries, rows, 0, 0, KEY, "r")
    assert whole.shape == (30, 1500)
    for i, j, k, width in ((0, 0, 30, 1100), (7, 900, 5, 300), (29, 1499, 1, 1), (3, 3, 9, 9)):
        part = noisy_block(mechanism, queries[i : i + k], rows[j : j + width], i, j, KEY, "r")
        assert part.tobytes() == whole[i : i + k, j : j + width].tobytes()
    error = (whole - queries @ rows.T).astype(np.float64)
    assert abs(error.std() / mechanism.sigma - 1) < 4 / math.sqrt(2 * error.size)


def test_releases_and_regimes_draw_different_noise() -> None:
    rows = gallery(64, 8)
    gram = calibrate_gram(128, 8, 1.0, DELTA)
    scores = dataclasses.replace(gram, regime="scores")
    blocks = [
        noisy_block(mechanism, rows, rows, 0, 64, key, release)
        for mechanism, key, release in (
            (gram, KEY, "a"),
            (gram, KEY, "b"),
            (gram, KEY[::-1], "a"),
            (scores, KEY, "a"),
        )
    ]
    for one in range(4):
        for other in range(one):
            assert np.mean(blocks[one] == blocks[other]) < 0.01
    again = noisy_block(gram, rows, rows, 0, 64, KEY, "a")
    assert again.tobytes() == blocks[0].tobytes()


def test_one_key_on_two_galleries_reveals_their_difference() -> None:
    """Control: why a key is bound to its gallery. The noise cancels exactly."""
    one, other = gallery(50, 4, 0), gallery(50, 4, 1)
    mechanism = with_noise(calibrate_gram(50, 4, 1.0, DELTA), 2.0**-3, -20)
    difference = assembled(mechanism, one, 50) - assembled(mechanism, other, 50)
    upper = np.triu_indices(50, 1)
    assert np.abs(difference - (one @ one.T - other @ other.T))[upper].max() < 2.0**-18


@pytest.mark.parametrize(
    ("rows", "columns", "row", "column"),
    [(50, 50, 50, 0), (50, 50, 0, 49), (50, 40, 0, 0), (40, 50, 0, 0), (10, 10, 5, 4)],
)
def test_no_value_of_a_gram_gets_a_second_noise(
    rows: int, columns: int, row: int, column: int
) -> None:
    """A block below the diagonal would draw fresh noise for values already released."""
    mechanism = calibrate_gram(100, 4, 1.0, DELTA)
    embeddings = gallery(50, 4)
    with pytest.raises(ParameterError, match="below the diagonal"):
        noisy_block(mechanism, embeddings[:rows], embeddings[:columns], row, column, KEY, "r")
