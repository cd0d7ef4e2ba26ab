"""The noise against an independent oracle, exact bin masses, and its own positions.

The oracle inverts the normal distribution: it reads the whole key stream of a sample (leading word
and further words), takes it as one long binary fraction p, solves Φ(z) = p in multiple precision
and rounds z·σ/g. The code under test never inverts in multiple precision; it compares tail
probabilities at boundaries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import chi2

from scoreshield.noise import sampler as noise
from scoreshield.noise.resolve import resolve_magnitude

RELEASE_KEY = bytes(range(32))
KEY = noise.tile_key(RELEASE_KEY, "release", "gram", 0, 1)
WHOLE = slice(0, noise.TILE)
RATIOS = (2.0**22, 1.37 * 2.0**20, 2.0**13 / 3, 3.3, 0.4)
FURTHER_BITS = 512


def aes_stream(key: bytes, counter: int, size: int) -> bytes:
    """AES-256-CTR key stream from a 128-bit big-endian block counter."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(size))


def whole_stream() -> NDArray[np.uint64]:
    """The tile's key stream as little-endian words, drawn in one piece from counter zero."""
    return np.frombuffer(aes_stream(KEY, 0, 8 * noise.TILE**2), "<u8")


def oracle(word: int, index: int, ratio: float) -> int:
    """Correctly rounded k of one sample by inversion in multiple precision."""
    further = int.from_bytes(aes_stream(KEY, (1 << 127) + (index << 20), FURTHER_BITS // 8), "big")
    tail = word & (2**63 - 1)
    with mpmath.workprec(160):
        p = mpmath.ldexp(mpmath.mpf((tail << FURTHER_BITS) + further), -64 - FURTHER_BITS)
        z = mpmath.mpf(float(ndtri(float(p))))
        # One Halley step triples the 15 correct digits of the start.
        step = (mpmath.ncdf(z) - p) / mpmath.npdf(z)
        x = -(z - step / (1 + z * step / 2)) * mpmath.mpf(ratio)
        magnitude = int(mpmath.floor(x + 0.5))
        distance = abs(x + mpmath.mpf(0.5) - mpmath.nint(x + 0.5))
        assert distance > ratio * 1e-32, "the oracle itself cannot decide this sample"
    return magnitude if word >> 63 == 0 else -magnitude


def drawn(words: list[int], ratio: float, row: int = 0) -> NDArray[np.float64]:
    """The code under test on crafted leading words, laid out from the start of a tile row."""
    padded = np.full(-(-len(words) // noise.TILE) * noise.TILE, 1 << 62, dtype=np.uint64)
    padded[: len(words)] = words
    piece = padded.reshape(-1, noise.TILE)
    sample_at = partial(noise._sample_of_tile, KEY, row, 0)
    k = noise._rounded(piece, ratio, noise._Scratch(len(piece)), sample_at)
    return k.ravel()[: len(words)]


def boundary_tail(k: int, ratio: float) -> int:
    """The 63-bit tail whose interval holds the boundary between k and k + 1."""
    with mpmath.workprec(200):
        probability = mpmath.ncdf(-(2 * k + 1) / (2 * mpmath.mpf(ratio)))
        return int(mpmath.floor(mpmath.ldexp(probability, 64)))


# 10 400 samples against the oracle: 5 × (800 + 600 + 300 + 380).


@pytest.mark.parametrize("ratio", RATIOS)
def test_drawn_samples_are_correctly_rounded(ratio: float) -> None:
    words = whole_stream()[:800]
    found = noise.tile_noise(KEY, ratio, slice(0, 1), slice(0, 800))[0]
    expected = [oracle(int(word), t, ratio) for t, word in enumerate(words)]
    assert found.tolist() == expected


def words_on_a_rounding_boundary(ratio: float) -> list[int]:
    random, words = np.random.default_rng(5), []
    for sign in (0, 1 << 63):
        for k in random.integers(0, max(int(5.2 * ratio), 2), 100):
            tail = boundary_tail(int(k), ratio)
            words += [sign | max(tail + offset, 0) for offset in (-1, 0, 1)]
    return words


def words_about_the_float_tolerance(ratio: float) -> list[int]:
    random = np.random.default_rng(6)
    words = []
    for k in random.integers(0, max(int(4.9 * ratio), 2), 300):
        z = -(int(k) + 0.5) / ratio
        density = float(np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))
        offset = int(random.uniform(-3, 3) * noise._TOLERANCE * density * 2.0**64)
        tail = min(max(boundary_tail(int(k), ratio) + offset, 0), 2**63 - 1)
        words.append(tail | int(random.integers(0, 2)) << 63)
    return words


def words_of_tails_and_middle(_ratio: float) -> list[int]:
    threshold = int(2.866515718791939e-07 * 2**64)  # Φ(−5)
    tails = [
        *range(60),
        *(2**63 - 1 - step for step in range(60)),
        *(threshold + step * 2**20 for step in range(-50, 50)),
        *(2**bit for bit in range(62)),
        *(int(tail) for tail in np.random.default_rng(7).integers(0, 2**44, 98)),
    ]
    return [tail | (t % 2) << 63 for t, tail in enumerate(tails)]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    ("words_of", "row"),
    [
        (words_on_a_rounding_boundary, 7),
        (words_about_the_float_tolerance, 100),
        (words_of_tails_and_middle, 1),
    ],
)
def test_crafted_words_are_correctly_rounded(
    words_of: Callable[[float], list[int]], row: int, ratio: float
) -> None:
    words = words_of(ratio)
    found = drawn(words, ratio, row)
    for t, word in enumerate(words):
        expected = oracle(word, row * noise.TILE + t, ratio)
        assert found[t] == expected, f"word {word:#x} at ratio {ratio}"


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("digits", [64, 200, 500])
def test_a_uniform_that_follows_a_boundary_is_decided_at_its_first_other_digit(
    ratio: float, digits: int
) -> None:
    """p equals the boundary in its first ``digits`` digits and leaves it right after."""
    for k in (0, 1, max(int(2.5 * ratio), 2)):
        with mpmath.workprec(900):
            boundary = mpmath.ncdf(-(2 * k + 1) / (2 * mpmath.mpf(ratio)))
            shared = int(mpmath.floor(mpmath.ldexp(boundary, digits)))
        # A step of two units of the last shared digit leaves no doubt on which side p lies.
        for step, expected in ((-2, k + 1), (2, k)):
            numerator = max(shared + step, 1) << (64 + 512 - digits)
            tail, further = divmod(numerator, 2**512)
            assert resolve_magnitude(tail, ratio, _supply(further, 512)) == expected


def _supply(number: int, bits: int) -> Callable[[], bytes]:
    pieces = itertools.chain(
        (number.to_bytes(bits // 8, "big")[at : at + 16] for at in range(0, bits // 8, 16)),
        itertools.repeat(bytes(16)),
    )
    return lambda: next(pieces)


def test_a_wider_tolerance_changes_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever float64 decides alone, multiple precision decides the same way."""
    rows = slice(0, 256)
    narrow = noise.tile_noise(KEY, 2.0**22, rows, WHOLE)
    calls = _count_resolutions(monkeypatch)
    monkeypatch.setattr(noise, "_TOLERANCE", 2.0**-33)
    assert np.array_equal(noise.tile_noise(KEY, 2.0**22, rows, WHOLE), narrow)
    assert len(calls) > 150


def test_the_resolver_is_reached_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _count_resolutions(monkeypatch)
    ratio = 2.0**22
    for column in range(8):
        noise.tile_noise(KEY[:-1] + bytes([column]), ratio, WHOLE, WHOLE)
    # 2·2^-43·2^22 of the samples lie near a boundary and 2Φ(−5) beyond five σ: 13 in 8 tiles.
    assert 4 <= len(calls) <= 26
    noise.tile_noise(KEY, ratio, WHOLE, WHOLE)
    words = whole_stream()
    for key, index, resolved in calls:
        if key == KEY:
            assert resolved == abs(oracle(int(words[index]), index, ratio))


def _count_resolutions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int, int]]:
    calls: list[tuple[bytes, int, int]] = []
    original = noise._resolved

    def counted(key: bytes, tail: int, ratio: float, index: int) -> int:
        resolved = original(key, tail, ratio, index)
        calls.append((key, index, resolved))
        return resolved

    monkeypatch.setattr(noise, "_resolved", counted)
    return calls


# The distribution, with keys fixed: each p-value is one number, the same in every run.


def chi_square_p_value(samples: NDArray[np.float64], ratio: float, edges: list[int]) -> float:
    """p-value of the counts in (−∞, e0], (e0, e1], …, (e_last, ∞) against exact masses."""
    counts = np.histogram(samples, [-np.inf, *(edge + 0.5 for edge in edges), np.inf])[0]
    cumulative = [0.0, *(float(mpmath.ncdf((edge + 0.5) / ratio)) for edge in edges), 1.0]
    expected = np.diff(cumulative) * samples.size
    assert expected.min() > 10
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    return float(chi2.sf(statistic, len(edges)))


def tiles(count: int, ratio: float) -> NDArray[np.float64]:
    keys = (noise.tile_key(RELEASE_KEY, "chi", "gram", 0, column) for column in range(count))
    return np.stack([noise.tile_noise(key, ratio, WHOLE, WHOLE) for key in keys])


@pytest.mark.parametrize("ratio", [0.7, 2.5, 7.9])
def test_every_integer_has_its_exact_mass(ratio: float) -> None:
    samples = tiles(4, ratio)
    reach = int(3.9 * ratio)
    edges = list(range(-reach, reach))
    assert 1e-3 < chi_square_p_value(samples, ratio, edges) < 1 - 1e-3
    assert chi_square_p_value(samples, ratio * 1.003, edges) < 1e-3


def test_coarse_bins_of_a_fine_grid_have_their_exact_mass() -> None:
    ratio = 1.3 * 2.0**20
    samples = tiles(4, ratio)
    inner = [round(float(ndtri(p)) * ratio) for p in np.arange(1, 200) / 200]
    outer = [round(z * ratio) for z in (3.0, 3.5, 4.0)]
    edges = sorted([*inner, *outer, *(-edge for edge in outer)])
    assert 1e-3 < chi_square_p_value(samples, ratio, edges) < 1 - 1e-3
    assert chi_square_p_value(samples, ratio * 1.003, edges) < 1e-3
    low_digits = np.bincount(np.mod(samples, 64).astype(np.int64).ravel(), minlength=64)
    even = samples.size / 64
    assert 1e-3 < chi2.sf(np.sum((low_digits - even) ** 2) / even, 63) < 1 - 1e-3


def test_moments_signs_and_neighbours() -> None:
    ratio = 2.0**20
    samples = tiles(3, ratio) / ratio
    error = 1 / np.sqrt(samples.size)
    assert abs(samples.mean()) < 4 * error
    assert abs((samples**2).mean() - 1) < 4 * np.sqrt(2) * error
    assert abs((samples**4).mean() - 3) < 4 * np.sqrt(96) * error
    assert abs(np.sign(samples).mean()) < 4 * error
    one_tile = 4 / noise.TILE
    for first, second in itertools.combinations(samples, 2):
        assert abs((first * second).mean()) < one_tile
        assert abs((first * second.T).mean()) < one_tile
        assert abs((abs(first) * abs(second)).mean() - 2 / np.pi) < one_tile
    for lag in (1, 2, 512):
        assert abs((samples[:, :, lag:] * samples[:, :, :-lag]).mean()) < 4 * error * 1.5
        assert abs((samples[:, lag:] * samples[:, :-lag]).mean()) < 4 * error * 1.5


def test_the_sign_is_independent_of_the_magnitude() -> None:
    words = [int(word) for word in whole_stream()[:2000]]
    flipped = [word ^ 1 << 63 for word in words]
    assert np.array_equal(drawn(words, 2.0**20), -drawn(flipped, 2.0**20))


# Position and keys.


def test_samples_are_integers() -> None:
    for ratio in RATIOS:
        samples = noise.tile_noise(KEY, ratio, slice(0, 64), WHOLE)
        assert np.array_equal(samples, np.rint(samples))
        assert np.abs(samples).max() < 10 * ratio + 1


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_rectangle_equals_its_part_of_the_tile(data: st.DataObject) -> None:
    edge = st.integers(0, noise.TILE)
    rows, columns = (slice(*sorted(data.draw(st.tuples(edge, edge)))) for _ in range(2))
    above = data.draw(st.booleans())
    whole = _whole_tile()
    expected = np.triu(whole, 1) if above else whole
    found = noise.tile_noise(KEY, 2.0**22, rows, columns, above_diagonal=above)
    assert np.array_equal(found, expected[rows, columns])


def test_the_whole_upper_triangle_of_a_tile() -> None:
    found = noise.tile_noise(KEY, 2.0**22, WHOLE, WHOLE, above_diagonal=True)
    assert np.array_equal(found, np.triu(_whole_tile(), 1))


@cache
def _whole_tile() -> NDArray[np.float64]:
    return noise.tile_noise(KEY, 2.0**22, WHOLE, WHOLE)


def test_tile_keys_and_streams_are_distinct() -> None:
    places = list(
        itertools.product(
            ("r", "r1", "1r", "r\x00"), ("gram", "scores", "gra", ""), (0, 1, 256, 2**40), range(8)
        )
    )
    keys = [noise.tile_key(RELEASE_KEY, *place) for place in places]
    assert len(set(keys)) == len(places)
    assert all(len(key) == 32 for key in keys)
    words = np.concatenate(
        [np.frombuffer(aes_stream(key, 0, 8 * noise.TILE), "<u8") for key in keys]
    )
    assert len(np.unique(words)) == words.size
    assert noise.tile_key(bytes(32), *places[0]) != keys[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("ab", "c", 0, 0), ("a", "bc", 0, 0)),
        (("", "abc", 0, 0), ("abc", "", 0, 0)),
        (("a", "b", 1, 0), ("a", "b", 0, 1)),
        (("a", "b", 0, 256), ("a", "b", 1, 0)),
        (("a\x00", "b", 0, 0), ("a", "\x00b", 0, 0)),
    ],
)
def test_field_boundaries_are_unambiguous(
    first: tuple[str, str, int, int], second: tuple[str, str, int, int]
) -> None:
    assert noise.tile_key(RELEASE_KEY, *first) != noise.tile_key(RELEASE_KEY, *second)


def test_further_words_never_meet_a_main_stream_or_each_other() -> None:
    main_blocks = noise.TILE**2 * 8 // 16
    first, last = 1 << 127, (1 << 127) + ((noise.TILE**2 - 1) << 20) + 2**20
    assert main_blocks < first
    assert last < 2**128


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf"), 2.0**22 * (1 + 2**-52)])
def test_ratios_without_an_established_tolerance_are_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio"):
        noise.tile_noise(KEY, ratio, slice(0, 1), slice(0, 1))


def test_a_short_release_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        noise.tile_key(b"short", "r", "gram", 0, 0)
    with pytest.raises(OverflowError):
        noise.tile_key(RELEASE_KEY, "r", "gram", -1, 0)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_overlapping_tiles_cover_an_interval_once(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    covered = [
        tile * noise.TILE + position
        for tile, part in noise.tiles_overlapping(start, stop)
        for position in range(part.start, part.stop)
    ]
    assert covered == list(range(start, stop))


@pytest.mark.parametrize("ratio", [0.3, 2.0**20, 2.0**22])
@pytest.mark.parametrize(
    ("column", "count"), [(0, 1024), (0, 100_000), (3, 1), (1000, 50), (700, 90_001), (1023, 2)]
)
@pytest.mark.parametrize("row", [0, 5, 1023])
def test_a_row_gets_the_noise_of_its_tiles(row: int, column: int, count: int, ratio: float) -> None:
    tiles = noise.tiles_overlapping(column, column + count)
    keys = [noise.tile_key(RELEASE_KEY, "r", "scores", 2, tile) for tile, _ in tiles]
    expected = np.concatenate(
        [
            noise.tile_noise(key, ratio, slice(row, row + 1), part)[0]
            for key, (_, part) in zip(keys, tiles, strict=True)
        ]
    )
    values = np.arange(count, dtype=np.float64)
    noise.add_row_noise(values, keys, ratio, row, column)
    assert np.array_equal(values, np.arange(count) + expected)
