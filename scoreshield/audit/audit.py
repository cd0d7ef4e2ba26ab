"""A statistical audit of the mechanism: how much privacy loss can be demonstrated on real releases?

The audit plays the adversary of the definition in the worst case. It fixes two adjacent galleries G
and G′ whose released similarities are as far apart as the adjacency allows, releases each of them
many times through :func:`scoreshield.mechanisms.gaussian.noisy_block` with a fresh key each time,
and guesses from each result which gallery it came from. For Gaussian noise the likelihood ratio is
monotone in ⟨out, G′ − G⟩, so comparing that number with its middle value is the best guess there
is.

The share of wrong guesses bounds μ from below (:mod:`scoreshield.audit.bound`). The test, its
threshold and the number of releases are fixed before the first release, so one bound is computed
and nothing is selected.

What it shows is one-sided: a lower bound above the claim proves the claim wrong; a lower bound just
below it says that the noise is not smaller than claimed, on this pair.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.bound import detectable_sigma, mu_lower_bound, releases_needed
from scoreshield.audit.pair import AUDIT_FEATURES, Pair, worst_pair
from scoreshield.audit.result import AuditResult
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism, noisy_block, sufficient_epsilon
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.sampler import KEY_BYTES
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, ScoreRange

AUDIT_RECORDS = 16
"""n of the audited galleries: small enough for 10^5 releases, and Δ = 2√(n − 1) already differs
from its usual mistakes (2√n, √(n − 1), 2√(2(n − 1)))."""
CONFIDENCE = 0.999

# μ at which a given number of guesses bounds it with the smallest relative error.
_SHARPEST_MU = 3.0
_BATCH = 256

Release = Callable[[Mechanism, NDArray[np.float32], bytes], NDArray[np.float32]]
"""(mechanism, fixed-point rows (n, d), release key) → noisy Gram matrix (n, n)."""

KeySource = Callable[[int], bytes]
"""Release key of the i-th release of an audit."""


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
