"""Releases on arrays, for a notebook or a service: the same mechanism, no files, no ledger.

The caller composes: :func:`scoreshield.compose` gives the total ε of several releases.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.mechanisms.gaussian import Mechanism, noisy_block
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.released import gram_block, released_factor, with_unit_diagonal
from scoreshield.mechanisms.scores import fixed_queries, scores_mechanism
from scoreshield.noise.encoding import FLOAT32, Encoding
from scoreshield.noise.sampler import KEY_BYTES, TILE
from scoreshield.prepared import PreparedGallery, fixed_rows
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, AdjacencyKind, ScoreRange
from scoreshield.projection import project

if TYPE_CHECKING:
    from scoreshield.manifest.schema import Manifest


@dataclass(frozen=True)
class GramRelease:
    """A released Gram matrix: PSD with unit diagonal, except under method ``none``."""

    gram: NDArray[np.float32]
    """(n, n), symmetric, entries in [-1, 1], diagonal exactly 1."""
    factor: NDArray[np.float32] | None
    """(n, r) with gram[i, j] = factor[i]·factor[j] off the diagonal; None under ``none``."""
    diagonal: NDArray[np.float32] | None
    """(n,) with ‖factor[i]‖² + diagonal[i] = 1; None under ``none``."""
    manifest: Manifest


@dataclass(frozen=True)
class ScoresRelease:
    """Released scores of m public queries against n records."""

    scores: NDArray[np.float32]
    """(m, n), or (n,) for a single query given as a vector; entries in [-1, 1]."""
    manifest: Manifest


def release_gram(
    E: NDArray[Any],
    *,
    epsilon: float,
    delta: float,
    adjacency: AdjacencyKind = "record",
    radius: float | None = None,
    score_range: tuple[float, float] | None = None,
    method: str = "aap",
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    rank: int | None = None,
) -> GramRelease:
    """Release the cosine Gram matrix of the rows of E (n, d) under (ε, δ)-differential privacy.

    Raises
    ------
    InputRejected
        E is not a matrix of finite non-zero rows.
    ParameterError
        A parameter is outside its domain.
    """
    rows = fixed_rows(E, "E")
    n, d = rows.shape
    mechanism = calibrate_gram(
        n, d, epsilon, delta, Adjacency(adjacency, radius), _range(score_range)
    )
    noisy = perturb_gram(rows, mechanism, secrets.token_bytes(KEY_BYTES), _fresh_id())
    projection = project(
        noisy.astype(np.float64),
        sigma=mechanism.sigma,
        method=method,
        tolerance=tolerance,
        max_iterations=max_iterations,
        rank=rank,
    )
    from scoreshield.manifest.build import manifest_in_memory

    manifest = manifest_in_memory(mechanism, projection)
    if projection.factor is None:
        return GramRelease(projection.gram().astype(np.float32), None, None, manifest)
    factor, diagonal = released_factor(projection.factor)
    return GramRelease(with_unit_diagonal(gram_block(factor, factor)), factor, diagonal, manifest)


def release_scores(
    E: NDArray[Any] | PreparedGallery,
    Q: NDArray[Any],
    *,
    epsilon: float,
    delta: float,
    adjacency: AdjacencyKind = "record",
    radius: float | None = None,
    score_range: tuple[float, float] | None = None,
) -> ScoresRelease:
    """Release the cosine scores of public queries Q, (m, d) or (d,), against the rows of E (n, d).

    Several queries are released jointly, with noise for ‖Q‖₂ rather than for each alone. A service
    that scores one gallery again and again prepares it once: ``E = PreparedGallery(E)``.

    Raises
    ------
    InputRejected
        E is not made of finite non-zero rows, Q not of distinct unit rows, or their dimensions
        differ.
    ParameterError
        A parameter is outside its domain.
    """
    gallery = E if isinstance(E, PreparedGallery) else PreparedGallery(E)
    queries = fixed_queries(Q, gallery.d)
    promised = _range(score_range)
    mechanism = scores_mechanism(
        gallery.n, queries, epsilon, delta, Adjacency(adjacency, radius), promised
    )
    noisy = gallery.noisy_scores(mechanism, queries, secrets.token_bytes(KEY_BYTES), _fresh_id())
    scores = np.clip(noisy, promised.low, promised.high, out=noisy)
    return ScoresRelease(scores[0] if np.ndim(Q) == 1 else scores, _scores_manifest(mechanism))


@lru_cache(maxsize=256)
def _scores_manifest(mechanism: Mechanism) -> Manifest:
    """Manifest of a release of scores; it says the same of every release with these settings."""
    from scoreshield.manifest.build import manifest_in_memory

    return manifest_in_memory(mechanism, None)


def perturb_gram(
    rows: NDArray[np.float32],
    mechanism: Mechanism,
    release_key: bytes,
    release_id: str,
    encoding: Encoding = FLOAT32,
) -> NDArray[np.float32]:
    """The whole noisy Gram matrix (n, n) of fixed-point rows (n, d), with unit diagonal.

    The same bits as the distributed pipeline reads back for the same key, release and settings,
    once ``encoding`` is that of its store. Releases on arrays store no blocks and stay in float32.
    """
    n = len(rows)
    noisy = np.empty((n, n), dtype=np.float32)
    for top in range(0, n, TILE):
        for left in range(top, n, TILE):
            across, down = slice(left, left + TILE), slice(top, top + TILE)
            block = noisy_block(
                mechanism, rows[down], rows[across], top, left, release_key, release_id
            )
            block = encoding.decode(encoding.encode(block))
            noisy[down, across] = block
            noisy[across, down] = block.T
    np.fill_diagonal(noisy, 1.0)
    return noisy


def _range(score_range: tuple[float, float] | None) -> ScoreRange:
    return FULL_RANGE if score_range is None else ScoreRange(*score_range)


def _fresh_id() -> str:
    return f"in-memory-{secrets.token_hex(8)}"
