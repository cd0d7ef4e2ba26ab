"""A statistical audit of the mechanism: how much privacy loss can be demonstrated on real releases?

The audit plays the adversary of the definition in the worst case. It fixes two adjacent galleries G
and G′ whose released similarities are as far apart as the adjacency allows, releases each of them
many times through :func:`scoreshield.mechanisms.gaussian.noisy_block` with a fresh key each time,
and guesses from each result which gallery it came from. For Gaussian noise the likelihood ratio is
monotone in ⟨out, G′ − G⟩, so comparing that number with its middle value is the best guess there
is.

A mechanism that is μ-GDP satisfies α + β ≥ 2 Φ(−μ/2) for the error rates of any test (Dong, Roth &
Su 2022, section 2). An upper confidence bound on the share of wrong guesses,
(α + β)/2, is therefore a lower confidence bound on μ. The test, its threshold and the number of
releases are fixed before the first release, so one bound is computed and nothing is selected.

What it shows is one-sided: a lower bound above the claim proves the claim wrong; a lower bound just
below it says that the noise is not smaller than claimed, on this pair.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import (
    Mechanism,
    calibrate_gram,
    noisy_block,
    sufficient_epsilon,
)
from scoreshield.noise.sampler import KEY_BYTES
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange

AUDIT_RECORDS = 16
"""n of the audited galleries: small enough for 10^5 releases, and Δ = 2√(n − 1) already differs
from its usual mistakes (2√n, √(n − 1), 2√(2(n − 1)))."""
AUDIT_FEATURES = 2
"""The worst pair lies in one plane."""
CONFIDENCE = 0.999
MOST_RELEASES = 130_000
"""Releases a side: what a claim of μ = 0.237 (ε = 1 at δ = 1e-6) needs; 30 CPU seconds in all."""

_FEWEST_RELEASES = 3_000
# μ at which a given number of guesses bounds it with the smallest relative error.
_SHARPEST_MU = 3.0
# A fault this large must not escape by chance: σ at 0.9 of what the claim needs.
_FAULT = 0.9
_POWER = 0.99
_BATCH = 256
_STEP = 2.0**-FRACTION_BITS

Release = Callable[[Mechanism, NDArray[np.float32], bytes], NDArray[np.float32]]
"""(mechanism, fixed-point rows (n, d), release key) → noisy Gram matrix (n, n)."""

KeySource = Callable[[int], bytes]
"""Release key of the i-th release of an audit."""


@dataclass(frozen=True)
class Pair:
    """Two adjacent galleries that differ in record 0; all other records are equal."""

    before: NDArray[np.float32]
    """(n, d) fixed-point rows."""
    after: NDArray[np.float32]
    """(n, d) fixed-point rows."""
    gram_before: NDArray[np.float64]
    """(n, n) exact similarities G within the score range, diagonal 1."""
    gram_after: NDArray[np.float64]
    """(n, n) exact similarities G′ within the score range, diagonal 1."""
    worst_distance: float
    """Largest distance that the adjacency allows, on the strict upper triangle."""

    @property
    def distance(self) -> float:
        """‖G′ − G‖ on the strict upper triangle."""
        return float(np.linalg.norm(np.triu(self.gram_after - self.gram_before, 1)))

    @property
    def fraction(self) -> float:
        """The share of the worst distance at which the pair lies."""
        return self.distance / self.worst_distance


@dataclass(frozen=True)
class AuditPlan:
    """Everything an audit fixes before its first release."""

    mechanism: Mechanism
    pair: Pair
    releases: int
    """Releases of each of the two galleries."""
    confidence: float


@dataclass(frozen=True)
class Tally:
    """What was counted on some of an audit's releases; tallies of disjoint releases add up."""

    releases: int
    """Releases of each of the two galleries."""
    wrong_before: int
    """Releases of G taken for G′."""
    wrong_after: int
    """Releases of G′ taken for G."""
    off_grid: int
    """Released values that are no integer multiple of g."""
    noise: NDArray[np.uint64]
    """(2 · releases,) fingerprints of the noise of record 0."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.releases + other.releases,
            self.wrong_before + other.wrong_before,
            self.wrong_after + other.wrong_after,
            self.off_grid + other.off_grid,
            np.concatenate([self.noise, other.noise]),
        )

    @property
    def repeated(self) -> int:
        """Releases whose noise another release had already used."""
        return int(self.noise.size - np.unique(self.noise).size)


@dataclass(frozen=True)
class AuditResult:
    """The claim and what the audit demonstrated, side by side."""

    adjacency: str
    n: int
    releases: int
    """Releases of each of the two galleries."""
    confidence: float
    """Probability with which the lower bounds hold."""
    pair_fraction: float
    """Share of the worst distance at which the audited pair lies."""
    false_alarm_rate: float
    """α: share of the releases of G taken for G′."""
    miss_rate: float
    """β: share of the releases of G′ taken for G."""
    claimed_mu: float
    mu_lower_bound: float
    claimed_epsilon: float
    epsilon_lower_bound: float
    delta: float
    detectable_sigma: float
    """A σ below this share of the claimed one would be exposed with probability 0.99."""
    off_grid: int
    repeated_noise: int

    @property
    def tightness(self) -> float:
        """Lower bound over claim, in μ: near one from below when claim and noise agree."""
        return self.mu_lower_bound / self.claimed_mu

    @property
    def faults(self) -> tuple[str, ...]:
        """Each way in which the releases contradict the claim, in words."""
        found = []
        if self.mu_lower_bound > self.claimed_mu:
            found.append(
                f"the releases show mu of at least {self.mu_lower_bound:.4g} where "
                f"{self.claimed_mu:.4g} is claimed: the noise is too small for the sensitivity"
            )
        if self.off_grid:
            found.append(
                f"{self.off_grid} released values are no multiple of the grid: their low-order "
                "bits may reveal the clean value"
            )
        if self.repeated_noise:
            found.append(
                f"{self.repeated_noise} releases used noise that another one had used: their "
                "difference is free of noise"
            )
        return tuple(found)

    @property
    def consistent(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "tightness": self.tightness,
            "consistent": self.consistent,
            "faults": list(self.faults),
        }

    def to_text(self) -> str:
        """The same for a person."""
        verdict = "consistent with the claim" if self.consistent else "CONTRADICTS THE CLAIM"
        return "\n".join(
            [
                f"audit: {verdict}",
                f"  claimed       mu {self.claimed_mu:.4g}, epsilon {self.claimed_epsilon:.4g} at "
                f"delta {self.delta:g}, adjacency {self.adjacency}",
                f"  demonstrated  mu at least {self.mu_lower_bound:.4g}, epsilon at least "
                f"{self.epsilon_lower_bound:.4g} (confidence {self.confidence:g}), "
                f"{100 * self.tightness:.1f} % of the claimed mu",
                f"  {2 * self.releases} releases of {self.n} records at "
                f"{100 * self.pair_fraction:.3g} % of the worst distance; guesses wrong in "
                f"{100 * self.false_alarm_rate:.2f} % and {100 * self.miss_rate:.2f} %",
                f"  a sigma below {self.detectable_sigma:.3f} of the claimed one would be exposed",
                *(f"  FAULT: {fault}" for fault in self.faults),
            ]
        )


def fresh_key(_index: int) -> bytes:
    """A release key from the operating system, as a release draws it."""
    return secrets.token_bytes(KEY_BYTES)


def release_gram_once(
    mechanism: Mechanism, rows: NDArray[np.float32], key: bytes
) -> NDArray[np.float32]:
    """One noisy Gram matrix (n, n) by the code that every release runs."""
    return noisy_block(mechanism, rows, rows, 0, 0, key, "audit")


def plan_audit(
    epsilon: float,
    delta: float,
    adjacency: Adjacency | None = None,
    score_range: ScoreRange = FULL_RANGE,
    confidence: float = CONFIDENCE,
    releases: int | None = None,
) -> AuditPlan:
    """Fix the pair, the test and the number of releases for one claim.

    Where the claimed μ is so large that wrong guesses on the worst pair are too rare to count, the
    pair is moved closer: the noise does not depend on the data, so a pair at a share c of the worst
    distance has c times its μ, and the bound found there is divided by c.

    Raises
    ------
    ParameterError
        Privacy parameters, confidence or number of releases outside their domain, or a pair too
        close to be told apart in fixed point.
    """
    if not 0.5 <= confidence < 1:
        raise ParameterError(f"confidence must lie in [0.5, 1), found {confidence!r}")
    if releases is not None and releases < 1:
        raise ParameterError(f"an audit needs at least 1 release a side, found {releases}")
    mechanism = calibrate_gram(
        AUDIT_RECORDS, AUDIT_FEATURES, epsilon, delta, adjacency, score_range
    )
    claimed = mechanism.guarantee.mu
    pair = worst_pair(mechanism, min(1.0, _SHARPEST_MU / claimed))
    if releases is None:
        releases = releases_needed(claimed * pair.fraction, confidence)
    return AuditPlan(mechanism, pair, releases, confidence)


def worst_pair(mechanism: Mechanism, share: float) -> Pair:
    """Adjacent galleries at ``share`` of the largest distance that the adjacency allows.

    All records but one equal a unit vector u. Record 0 moves from a·u + w to b·u + w with w ⊥ u of
    the same length on both sides, so that it moves by b − a, and all of its n − 1 similarities with
    it. Among all places of [a, b] within the score range the one nearest to zero is taken, where
    float32 keeps every bit of the noise.

    Raises
    ------
    ParameterError
        The two galleries would be equal in fixed point.
    """
    n, adjacency, score_range = mechanism.n, mechanism.guarantee.adjacency, mechanism.score_range
    worst = _worst_distance(n, adjacency, score_range)
    width = score_range.high - score_range.low
    low, high = _scores(min(share * worst / math.sqrt(n - 1), width), score_range)
    if low >= high:
        raise ParameterError(
            f"adjacency {adjacency} with score range [{score_range.low:g}, {score_range.high:g}] "
            f"allows changes below the fixed-point step 2^-{FRACTION_BITS} only; there is no pair "
            "to audit"
        )
    if adjacency.kind != "shift":
        # A score at an end of the range is approached from beyond it: clipping is audited too.
        low = -1.0 if low - _STEP < score_range.low else low
        high = 1.0 if high + _STEP > score_range.high else high
    before, after = _rows(n, low, high), _rows(n, high, low)
    return Pair(
        before, after, _clean_gram(before, score_range), _clean_gram(after, score_range), worst
    )


def tally_releases(
    plan: AuditPlan,
    start: int,
    stop: int,
    keys: KeySource = fresh_key,
    release: Release = release_gram_once,
) -> Tally:
    """Release G and G′ for each trial in [start, stop) and count.

    Trial t uses the keys 2t (for G) and 2t + 1 (for G′).
    """
    total = Tally(0, 0, 0, 0, np.empty(0, dtype=np.uint64))
    for first in range(start, stop, _BATCH):
        trials = range(first, min(first + _BATCH, stop))
        total += _tally_batch(plan, trials, keys, release)
    return total


def conclude(plan: AuditPlan, tally: Tally) -> AuditResult:
    """Turn the counts of a whole audit into bounds beside the claim.

    Raises
    ------
    ParameterError
        The tally does not hold the planned number of releases: a test that stops when its result
        pleases has no confidence level.
    """
    if tally.releases != plan.releases:
        raise ParameterError(
            f"the audit planned {plan.releases} releases a side, found {tally.releases} counted"
        )
    guarantee, fraction = plan.mechanism.guarantee, plan.pair.fraction
    wrong = tally.wrong_before + tally.wrong_after
    mu = mu_lower_bound(wrong, 2 * tally.releases, plan.confidence) / fraction
    return AuditResult(
        adjacency=str(guarantee.adjacency),
        n=plan.mechanism.n,
        releases=tally.releases,
        confidence=plan.confidence,
        pair_fraction=fraction,
        false_alarm_rate=tally.wrong_before / tally.releases,
        miss_rate=tally.wrong_after / tally.releases,
        claimed_mu=guarantee.mu,
        mu_lower_bound=mu,
        claimed_epsilon=guarantee.epsilon,
        epsilon_lower_bound=sufficient_epsilon(mu, guarantee.delta),
        delta=guarantee.delta,
        detectable_sigma=detectable_sigma(guarantee.mu * fraction, tally.releases, plan.confidence),
        off_grid=tally.off_grid,
        repeated_noise=tally.repeated,
    )


def audit(
    plan: AuditPlan, keys: KeySource = fresh_key, release: Release = release_gram_once
) -> AuditResult:
    """Run a whole audit in this process."""
    return conclude(plan, tally_releases(plan, 0, plan.releases, keys, release))


def mu_lower_bound(wrong: int, guesses: int, confidence: float) -> float:
    """Lower confidence bound on μ from the number of wrong guesses; at least 0.

    The upper bound of Clopper & Pearson (1934) on p = (α + β)/2, then μ ≥ −2 Φ⁻¹(p). Half of the
    guesses err with probability α and half with β; their sum spreads no wider than a binomial with
    the mean probability (Hoeffding 1956), so the bound holds for the two together. It is
    tighter than bounding α and β one by one, each with half of the error probability.
    """
    if wrong >= guesses:
        return 0.0
    share = float(betaincinv(wrong + 1, guesses - wrong, confidence))
    return max(0.0, -2 * float(ndtri(share)))


def releases_needed(mu: float, confidence: float) -> int:
    """Releases a side that expose σ × 0.9 with probability 0.99, where a machine can afford it."""
    root = _loss(mu, confidence) / (mu * (1 / _FAULT - 1))
    return math.ceil(min(max(root**2, _FEWEST_RELEASES), MOST_RELEASES))


def detectable_sigma(mu: float, releases: int, confidence: float) -> float:
    """The share of σ below which the audit exposes it with probability 0.99."""
    return 1 / (1 + _loss(mu, confidence) / math.sqrt(releases) / mu)


def _loss(mu: float, confidence: float) -> float:
    """How far μ must exceed the claim to be exposed, times √releases.

    The share p = Φ(−μ/2) of wrong guesses among 2N has standard deviation √(p(1 − p)/2N), and
    dμ/dp = −2/φ(μ/2). The bound stays below the estimate by Φ⁻¹(confidence) of these, and chance
    may take away Φ⁻¹(0.99) more.
    """
    p = float(ndtr(-mu / 2))
    density = math.exp(-(mu**2) / 8) / math.sqrt(2 * math.pi)
    deviation = 2 / density * math.sqrt(p * (1 - p) / 2)
    return deviation * float(ndtri(confidence) + ndtri(_POWER))


def _worst_distance(n: int, adjacency: Adjacency, score_range: ScoreRange) -> float:
    """Distance on the strict upper triangle, from the adjacency's own words.

    Deliberately not taken from :mod:`scoreshield.privacy.sensitivity`, which is under audit.
    """
    if adjacency.kind == "output":
        return adjacency.reach / math.sqrt(2)
    return min(score_range.high - score_range.low, adjacency.reach) * math.sqrt(n - 1)


def _scores(length: float, score_range: ScoreRange) -> tuple[float, float]:
    """Fixed-point scores (a, b) within the range, at most ``length`` apart, nearest to zero."""
    low = min(max(-length / 2, score_range.low), score_range.high - length)
    return math.ceil(low / _STEP) * _STEP, math.floor((low + length) / _STEP) * _STEP


def _rows(n: int, score: float, other_score: float) -> NDArray[np.float32]:
    """Fixed-point gallery (n, 2) whose record 0 has ``score`` with each other record.

    ``other_score`` is that of the other gallery, which shares the component across; that component
    is rounded down, so that neither row is longer than one.
    """
    largest = max(abs(score), abs(other_score))
    rows = np.zeros((n, AUDIT_FEATURES))
    rows[1:, 0] = 1.0
    rows[0] = score, math.floor(math.sqrt(1 - largest**2) / _STEP) * _STEP
    return rows.astype(np.float32)


def _clean_gram(rows: NDArray[np.float32], score_range: ScoreRange) -> NDArray[np.float64]:
    """Exact similarities (n, n) within the score range, diagonal 1."""
    values = rows.astype(np.float64)
    gram: NDArray[np.float64] = np.clip(values @ values.T, score_range.low, score_range.high)
    np.fill_diagonal(gram, 1.0)
    return gram


def _tally_batch(plan: AuditPlan, trials: range, keys: KeySource, release: Release) -> Tally:
    pair, mechanism = plan.pair, plan.mechanism
    direction = pair.gram_after - pair.gram_before
    middle = float(np.sum((pair.gram_after + pair.gram_before) / 2 * direction))
    taken_for_after, off_grid, noise = [], 0, []
    for side, (rows, clean) in enumerate(
        ((pair.before, pair.gram_before), (pair.after, pair.gram_after))
    ):
        out = np.stack([release(mechanism, rows, keys(2 * trial + side)) for trial in trials])
        values = out.astype(np.float64)
        # The whole matrix: were the lower triangle no mirror, averaging both would be stronger.
        taken_for_after.append(np.tensordot(values, direction, axes=2) > middle)
        off_grid += _count_off_grid(values, mechanism.grid)
        noise.append(_fingerprints(values[:, 0, 1:] - clean[0, 1:], mechanism.grid))
    return Tally(
        releases=len(trials),
        wrong_before=int(taken_for_after[0].sum()),
        wrong_after=int((~taken_for_after[1]).sum()),
        off_grid=off_grid,
        noise=np.concatenate(noise),
    )


def _count_off_grid(values: NDArray[np.float64], grid: float) -> int:
    """Off-diagonal values of the stack (k, n, n) that are no integer times g; the diagonal is 1."""
    upper = np.triu_indices(values.shape[1], 1)
    both = np.stack([values[:, *upper], values.transpose(0, 2, 1)[:, *upper]]) / grid
    return int(np.sum(both != np.rint(both)))


def _fingerprints(noise: NDArray[np.float64], grid: float) -> NDArray[np.uint64]:
    """A 64-bit hash of the noise integers of each release, from values (k, n − 1).

    10^6 of them collide by chance with probability 3e-8.
    """
    integers = np.rint(noise / grid).astype(np.int64)
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in integers)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
