"""Two attacks on similarities, on clean and on released values, for the curator's eyes only.

An audit asks what could leak in the worst case; these ask what leaks from an actual gallery to the
adversaries that people fear. Their results depend on the gallery and must not be published.

Membership inference: an adversary who knows every other record asks whether record x or a decoy is
in the gallery. Reconstruction: an adversary who may ask for scores approaches a record, by
score-guided hill climbing (Adler 2003 for faces) or by regression, which is stronger because scores
are linear in the query.

Both run on :func:`scoreshield.mechanisms.gaussian.noisy_block`. Pseudo-random choices of the
adversary come from SHAKE-256 of a seed, so a run can be repeated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from scoreshield.arithmetic.fixedpoint import exact_products, substitute_row, to_fixed, to_integers
from scoreshield.audit.audit import KeySource, fresh_key
from scoreshield.errors import ParameterError
from scoreshield.mechanisms.gaussian import Mechanism, noisy_block
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores

_WORD_BYTES = 8
_PRODUCT_SCALE = 2.0**-48
# Step control of a (1 + 1) evolution strategy: one success in five keeps the step (Rechenberg
# 1973).
_GROWTH, _SHRINKAGE = math.exp(1 / 3), math.exp(-1 / 12)

Score = Callable[[NDArray[np.float32], int], float]
"""(fixed-point query (1, d), number of the query) → the score the adversary sees."""

Strategy = Callable[[Score, NDArray[np.float32], int, bytes], NDArray[np.float64]]
"""(score, public start (d,), queries, seed) → the unit direction (d,) that is reconstructed."""


@dataclass(frozen=True)
class MembershipResult:
    """How often the adversary tells a record from a decoy that takes its place."""

    trials: int
    """Guesses on releases with the record in, and as many on releases with the decoy in."""
    clean_success: float
    """Share of right guesses from clean similarities."""
    released_success: float
    """Share of right guesses from released similarities."""
    released_auc: float
    """Area under the ROC curve of the likelihood ratio on released similarities."""
    success_bound: float
    """Φ(μ/2), which no adversary exceeds in expectation, with μ for replacing a whole record."""


@dataclass(frozen=True)
class ReconstructionResult:
    """How close an adversary who asks for scores comes to the record that it is after."""

    strategy: str
    targets: int
    queries: int
    """Queries spent on each target; together they cost the claimed ε."""
    start_cosine: float
    """Mean cosine of the public start direction to the targets."""
    clean_cosine: float
    """Mean final cosine where the adversary sees clean scores."""
    released_cosine: float
    """Mean final cosine where the adversary sees released scores."""
    clean_identified: float
    """Share of targets that are the record nearest to what was reconstructed."""
    released_identified: float
    """The same where the adversary sees released scores."""


def membership_inference(
    rows: NDArray[np.float32],
    mechanism: Mechanism,
    trials: int,
    seed: bytes,
    keys: KeySource = fresh_key,
) -> MembershipResult:
    """Tell record x from a decoy, knowing all other records, by the likelihood ratio.

    In each trial two random records become x and the decoy; the others are the gallery that the
    adversary knows. Similarities with x are released once, those with the decoy once. Gaussian
    noise makes the log likelihood ratio linear: ⟨out − (s + s′)/2, s − s′⟩/σ².

    Parameters
    ----------
    rows : (k, d) fixed-point rows, k ≥ 3; a gallery of k − 1 records is attacked.
    mechanism : Gram mechanism whose claim is attacked; recalibrated to k − 1 records.
    trials : pairs of releases.
    seed : what the adversary's choices derive from.
    keys : release key of the i-th release.

    Raises
    ------
    ParameterError
        Fewer than 3 records or 1 trial.
    """
    if rows.shape[0] < 3 or trials < 1:
        raise ParameterError(
            "membership inference needs at least 3 records and 1 trial, found "
            f"{rows.shape[0]} and {trials}"
        )
    small = _same_claim(mechanism, rows.shape[0] - 1)
    ratios, clean_right = np.empty((trials, 2)), 0.0
    for trial in range(trials):
        x, decoy = _two_records(seed, trial, rows.shape[0])
        known = np.delete(rows, [x, decoy], axis=0)
        clean = _clean(rows[[x, decoy]], known)
        difference, middle = clean[0] - clean[1], clean.sum(axis=0) / 2
        for side, record in enumerate((x, decoy)):
            key = keys(2 * trial + side)
            out = noisy_block(small, rows[record : record + 1], known, 0, 1, key, "membership")
            ratios[trial, side] = (out[0].astype(np.float64) - middle) @ difference
        clean_right += 1.0 if np.any(difference) else 0.5
    return MembershipResult(
        trials=trials,
        clean_success=clean_right / trials,
        released_success=_success(ratios[:, 0], ratios[:, 1]),
        released_auc=_area_under_curve(ratios[:, 0], ratios[:, 1]),
        success_bound=float(ndtr(small.implied.mu / 2)),
    )


def reconstruction(
    rows: NDArray[np.float32],
    mechanism: Mechanism,
    strategy: Strategy,
    targets: int,
    queries: int,
    seed: bytes,
    keys: KeySource = fresh_key,
) -> ReconstructionResult:
    """Approach records by asking for scores, clean and released.

    All ``queries`` scores of one target together cost the claimed ε: adaptive queries are covered
    by the worst case ‖Q‖₂ = √queries, that of equal queries. Each record is attacked on a release
    of its own, as if it alone had to bear the whole budget.

    Parameters
    ----------
    rows : (k, d) fixed-point rows.
    mechanism : the mechanism whose ε, δ, adjacency and score range each attack is granted.
    strategy : :func:`hill_climbing` or :func:`regression`.
    targets : how many records, evenly spaced, are attacked.
    queries : scores that the adversary may ask for, for each target.
    seed : what the adversary's directions derive from.
    keys : release key of the i-th attack.

    Raises
    ------
    ParameterError
        No records, targets or queries, or more targets than records.
    """
    if not (1 <= targets <= rows.shape[0] and queries >= 1):
        raise ParameterError(
            f"a reconstruction needs 1 to {rows.shape[0]} targets and at least 1 query, found "
            f"{targets} and {queries}"
        )
    session = _scores_session(mechanism, rows.shape[1], queries)
    start = substitute_row(rows.shape[1])
    chosen = [int(i) for i in np.linspace(0, rows.shape[0] - 1, targets).round()]
    reached = np.empty((targets, 2, rows.shape[1]))
    for attack, target in enumerate(chosen):
        record = rows[target : target + 1]
        views = (_clean_score(record), _released_score(session, record, keys(attack)))
        for side, view in enumerate(views):
            own_seed = seed + attack.to_bytes(8, "big")
            reached[attack, side] = strategy(view, start, queries, own_seed)
    goals = _unit(rows[chosen].astype(np.float64))
    cosines = np.einsum("tsd,td->ts", reached, goals).mean(axis=0)
    nearest = np.argmax(reached @ rows.T.astype(np.float64), axis=2)
    identified = np.mean(nearest == np.array(chosen)[:, None], axis=0)
    return ReconstructionResult(
        strategy=strategy.__name__.replace("_", " "),
        targets=targets,
        queries=queries,
        start_cosine=float(np.mean(goals @ _unit(start.astype(np.float64)))),
        clean_cosine=float(cosines[0]),
        released_cosine=float(cosines[1]),
        clean_identified=float(identified[0]),
        released_identified=float(identified[1]),
    )


def hill_climbing(
    score: Score, start: NDArray[np.float32], queries: int, seed: bytes
) -> NDArray[np.float64]:
    """The unit direction (d,) where a climb that asks for ``queries`` scores ends.

    A (1 + 1) evolution strategy on the sphere: propose a Gaussian step, keep it if the score is
    higher, lengthen the step after a success and shorten it after a failure.
    """
    position = _unit(start.astype(np.float64))
    best, step = score(to_fixed(position[None]), 0), 1.0
    for number in range(1, queries):
        direction = gaussian_direction(seed, number, position.size)
        proposal = _unit(position + step / math.sqrt(position.size) * direction)
        seen = score(to_fixed(proposal[None]), number)
        if seen > best:
            position, best, step = proposal, seen, min(1.0, step * _GROWTH)
        else:
            step *= _SHRINKAGE
    return position


def regression(
    score: Score, start: NDArray[np.float32], queries: int, seed: bytes
) -> NDArray[np.float64]:
    """The unit direction (d,) of the least-squares solution of ``queries`` score equations.

    Queries are spread around the public start, where a score range of non-negative galleries clips
    few of them. Under Gaussian noise this is the maximum likelihood estimate of an unclipped
    record.
    """
    center = _unit(start.astype(np.float64))
    steps = [gaussian_direction(seed, number, center.size) for number in range(queries)]
    asked = to_fixed(center + np.array(steps) / math.sqrt(center.size))
    seen = [score(asked[number : number + 1], number) for number in range(queries)]
    solution = np.linalg.lstsq(asked.astype(np.float64), np.array(seen), rcond=None)[0]
    # Scores that are all zero tell nothing; the start is then the best guess.
    return _unit(solution) if np.any(solution) else center


def gaussian_direction(seed: bytes, number: int, dimension: int) -> NDArray[np.float64]:
    """Standard normal vector (d,) from SHAKE-256 of the seed and a number."""
    words = np.frombuffer(
        hashlib.shake_256(seed + number.to_bytes(8, "big")).digest(_WORD_BYTES * dimension), "<u8"
    )
    # 53 bits, centred: neither 0 nor 1, where the quantile is infinite.
    direction: NDArray[np.float64] = ndtri(((words >> np.uint64(11)) + 0.5) * 2.0**-53)
    return direction


def _same_claim(mechanism: Mechanism, n: int) -> Mechanism:
    """The same (ε, δ), adjacency and score range on a gallery of another size."""
    claim = mechanism.guarantee
    return calibrate_gram(
        n, mechanism.d, claim.epsilon, claim.delta, claim.adjacency, mechanism.score_range
    )


def _scores_session(mechanism: Mechanism, dimension: int, queries: int) -> Mechanism:
    """Scores mechanism under which any ``queries`` adaptive queries cost the claimed ε."""
    claim = mechanism.guarantee
    equal = np.repeat(substitute_row(dimension)[None], queries, axis=0)
    return calibrate_scores(
        mechanism.n, equal, claim.epsilon, claim.delta, claim.adjacency, mechanism.score_range
    )


def _clean_score(record: NDArray[np.float32]) -> Score:
    return lambda query, _number: float(_clean(query, record)[0, 0])


def _released_score(session: Mechanism, record: NDArray[np.float32], key: bytes) -> Score:
    return lambda query, number: float(
        noisy_block(session, query, record, number, 0, key, "reconstruction")[0, 0]
    )


def _clean(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    return exact_products(to_integers(left), to_integers(right)) * _PRODUCT_SCALE


def _two_records(seed: bytes, trial: int, count: int) -> tuple[int, int]:
    """Two different records below ``count``; the bias of the remainder is below count/2^64."""
    digest = hashlib.shake_256(seed + trial.to_bytes(8, "big")).digest(2 * _WORD_BYTES)
    first = int.from_bytes(digest[:_WORD_BYTES], "big") % count
    second = int.from_bytes(digest[_WORD_BYTES:], "big") % (count - 1)
    return first, second + (second >= first)


def _success(of_record: NDArray[np.float64], of_decoy: NDArray[np.float64]) -> float:
    """Share of right guesses at likelihood ratio one; a tie is half right."""
    right = np.sum(of_record > 0) + np.sum(of_decoy < 0)
    ties = np.sum(of_record == 0) + np.sum(of_decoy == 0)
    return float((right + ties / 2) / (of_record.size + of_decoy.size))


def _area_under_curve(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Mann & Whitney's estimate: the share of (positive, negative) pairs in the right order."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(positive, negative).statistic / (positive.size * negative.size))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit
