"""The algebraically largest eigenpairs of A = G + Diag(y), by products with G alone.

A subspace is refined by a Chebyshev filter, which damps the unwanted interval [lower, cut] and
amplifies what lies above it, and read by the Rayleigh–Ritz method (Y. Zhou, Y. Saad, M. L. Tiago,
J. R. Chelikowsky, J. Comput. Phys. 219 (2006) 172–184). The first subspace is a block Krylov one,
which also bounds the spectrum from below. The product G·V is kept with the subspace V, so that a
change of y costs a small eigenproblem and no product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import scipy.linalg

from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.panels import (
    P,
    PanelAlgebra,
    PanelOperator,
    Term,
    concatenate,
    orthonormalise,
    select,
)
from scoreshield.projection.operator import FloatArray

KRYLOV_DEPTH = 6
"""Products of the first, block Krylov, subspace."""

DENSITY_BLOCK = 16
DENSITY_DEPTH = 8
"""Block Krylov subspace from which the spectral density is first estimated."""

LARGEST_DEGREE = 16
"""Highest degree of one filter; beyond it a Rayleigh–Ritz step in between pays."""

LARGEST_AMPLIFICATION = 1e6
"""Ratio of the largest to the smallest wanted component after one filter, in float64."""


@dataclass(frozen=True, eq=False)
class RitzPairs(Generic[P]):
    """Approximate eigenpairs of A = G + Diag(y) in a subspace.

    Attributes
    ----------
    values : θ, (k,), descending
    vectors : V, (n, k), orthonormal, in the order of ``values``
    image : G·V, (n, k), without the diagonal
    lower : estimate from below of the smallest eigenvalue of A
    """

    values: FloatArray
    vectors: P
    image: P
    lower: float

    @property
    def positive(self) -> int:
        """Number of Ritz values above zero."""
        return int(np.count_nonzero(self.values > 0.0))


def factor_of(algebra: PanelAlgebra[P], vectors: P, values: FloatArray) -> P:
    """F with F·Fᵀ = V·Diag(θ)·Vᵀ over the leading pairs, of which θ ≥ 0, (r,), are the values."""
    weights = np.zeros((vectors.shape[1], values.size))
    kept = np.arange(values.size)
    weights[kept, kept] = np.sqrt(values)
    return algebra.combine([Term(vectors, weights)])


def positive_diagonal(algebra: PanelAlgebra[P], vectors: P, values: FloatArray) -> FloatArray:
    """Diagonal of V·Diag(θ₊)·Vᵀ, (n,)."""
    weighted = algebra.combine([Term(vectors, np.diag(np.maximum(values, 0.0)))])
    return algebra.row_inner(weighted, vectors)


def rayleigh_ritz(
    algebra: PanelAlgebra[P], basis: P, image: P, dual: FloatArray, lower: float
) -> RitzPairs[P]:
    """Ritz pairs of G + Diag(y) in the span of an orthonormal basis with its image G·V.

    No product with G.
    """
    return ritz_in_blocks(algebra, [basis], [image], dual, lower)


def ritz_values(algebra: PanelAlgebra[P], basis: P, image: P, dual: FloatArray) -> FloatArray:
    """The values of :func:`rayleigh_ritz`, descending, (k,)."""
    reduced = _reduced(algebra, [basis], [image], dual)
    return np.linalg.eigvalsh(reduced).astype(np.float64)[::-1]


def ritz_in_blocks(
    algebra: PanelAlgebra[P],
    blocks: Sequence[P],
    images: Sequence[P],
    dual: FloatArray,
    lower: float,
    count: int | None = None,
) -> RitzPairs[P]:
    """:func:`rayleigh_ritz` in a basis kept in blocks; the leading ``count`` pairs, or all."""
    values, rotation = descending_eigh(_reduced(algebra, blocks, images, dual))
    vectors, image = _rotated(algebra, blocks, images, rotation[:, :count])
    return RitzPairs(values[:count], vectors, image, min(lower, float(values[-1])))


def descending_eigh(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues, descending, and eigenvectors of a small symmetric matrix."""
    # Divide and conquer: a third faster here than the default for matrices of a few hundred rows.
    values, vectors = scipy.linalg.eigh(matrix, check_finite=False, driver="evd")
    return values[::-1], np.ascontiguousarray(vectors[:, ::-1])


def _reduced(
    algebra: PanelAlgebra[P], blocks: Sequence[P], images: Sequence[P], dual: FloatArray
) -> FloatArray:
    """VᵀAV for V = [V₁ V₂ …] kept in blocks; what lies below its diagonal is mirrored."""
    offsets = np.cumsum([0, *(block.shape[1] for block in blocks)])
    reduced = np.empty((offsets[-1], offsets[-1]))
    for right, (block, image) in enumerate(zip(blocks, images, strict=True)):
        applied = algebra.combine([Term(image), Term(block, row_scale=dual)])
        columns = slice(offsets[right], offsets[right + 1])
        for left in range(right + 1):
            rows = slice(offsets[left], offsets[left + 1])
            part = algebra.inner(blocks[left], applied)
            if left == right:
                part = 0.5 * (part + part.T)
            reduced[rows, columns] = part
            reduced[columns, rows] = part.T
    return reduced


def residual_norms(
    algebra: PanelAlgebra[P], pairs: RitzPairs[P], dual: FloatArray, count: int
) -> FloatArray:
    """‖A·v − θ·v‖ of the first ``count`` Ritz pairs, (count,)."""
    leading = np.eye(pairs.values.size)[:, :count]
    difference = algebra.combine(
        [
            Term(pairs.image, leading),
            Term(pairs.vectors, leading, row_scale=dual),
            Term(pairs.vectors, -leading * pairs.values[:count]),
        ]
    )
    return np.sqrt(np.maximum(np.diag(algebra.inner(difference, difference)), 0.0))


def krylov_start(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    dual: FloatArray,
    size: int,
    *,
    block: int | None = None,
    depth: int = KRYLOV_DEPTH,
) -> tuple[RitzPairs[P], SpectralDensity]:
    """The ``size`` largest Ritz pairs in a block Krylov subspace, and the spectral density.

    Parameters
    ----------
    size : pairs to return, fewer where the subspace is smaller
    block : columns of the first block, ``size`` when None
    depth : most products; fewer are made once the subspace is the whole space
    """
    blocks, images = krylov_blocks(
        operator, algebra, dual, algebra.start(min(block or size, algebra.n)), depth
    )
    values, rotation = descending_eigh(_reduced(algebra, blocks, images, dual))
    first = blocks[0].shape[1]
    weights = np.sum(rotation[:first] ** 2, axis=0)
    density = SpectralDensity(values, weights * (algebra.n / first))
    # A Krylov subspace sees the end of the spectrum from inside; the margin covers what is left.
    margin = 0.0 if values.size >= algebra.n else 0.05 * float(values[0] - values[-1])
    vectors, image = _rotated(algebra, blocks, images, rotation[:, :size])
    return RitzPairs(values[:size], vectors, image, float(values[-1]) - margin), density


def spectral_density(operator: PanelOperator[P], algebra: PanelAlgebra[P]) -> SpectralDensity:
    """Spectral density of G by Lanczos quadrature: 8 products with 16 columns."""
    zero = np.zeros(algebra.n)
    return krylov_start(operator, algebra, zero, 1, block=DENSITY_BLOCK, depth=DENSITY_DEPTH)[1]


def _rotated(
    algebra: PanelAlgebra[P], blocks: Sequence[P], images: Sequence[P], rotation: FloatArray
) -> tuple[P, P]:
    offsets = np.cumsum([panel.shape[1] for panel in blocks])[:-1]
    parts = [np.ascontiguousarray(part) for part in np.split(rotation, offsets)]
    return (
        algebra.combine([Term(panel, part) for panel, part in zip(blocks, parts, strict=True)]),
        algebra.combine([Term(panel, part) for panel, part in zip(images, parts, strict=True)]),
    )


def krylov_blocks(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    dual: FloatArray,
    start: P,
    depth: int,
    against: Sequence[P] = (),
) -> tuple[list[P], list[P]]:
    """Orthonormal blocks of a Krylov subspace of A, and their images under G.

    Parameters
    ----------
    start : first block
    depth : most products; fewer are made once the blocks span everything
    against : panels, orthonormal together, to which all blocks are kept orthogonal
    """
    blocks: list[P] = []
    images: list[P] = []
    newest = start
    while len(blocks) < depth:
        newest = orthonormalise(algebra, newest, against=[*against, *blocks])
        if newest.shape[1] == 0:
            break
        blocks.append(newest)
        images.append(operator.matmat(newest))
        if sum(block.shape[1] for block in [*against, *blocks]) >= algebra.n:
            break
        newest = algebra.combine([Term(images[-1]), Term(newest, row_scale=dual)])
    return blocks, images


def leading(algebra: PanelAlgebra[P], pairs: RitzPairs[P], count: int) -> RitzPairs[P]:
    """The first ``count`` Ritz pairs."""
    if count >= pairs.values.size:
        return pairs
    kept = slice(0, count)
    return RitzPairs(
        pairs.values[kept],
        select(algebra, pairs.vectors, kept),
        select(algebra, pairs.image, kept),
        pairs.lower,
    )


def filtered(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    pairs: RitzPairs[P],
    dual: FloatArray,
    degree: int,
    cut: float,
) -> P:
    """p(A)·V for the scaled Chebyshev polynomial p of that degree on [lower, cut].

    ``degree`` − 1 products: the first is known from the Ritz pairs.
    """
    half = _half_width(pairs, cut)
    centre = 0.5 * (cut + pairs.lower)
    scale = ratio = half / max(float(pairs.values[0]) - centre, half)
    previous, image = pairs.vectors, pairs.image
    current = algebra.combine(
        [
            Term(image, scale / half),
            Term(previous, scale / half, row_scale=dual - centre),
        ]
    )
    for _ in range(1, degree):
        image = operator.matmat(current)
        following = 1.0 / (2.0 / ratio - scale)
        step = 2.0 * following / half
        current, previous = (
            algebra.combine(
                [
                    Term(image, step),
                    Term(current, step, row_scale=dual - centre),
                    Term(previous, -scale * following),
                ]
            ),
            current,
        )
        scale = following
    return current


def _half_width(pairs: RitzPairs[P], cut: float) -> float:
    # A cluster at the end of the spectrum leaves no interval to damp.
    size = max(abs(float(pairs.values[0])), abs(pairs.lower), 1e-300)
    return max(0.5 * (cut - pairs.lower), 1e-8 * size)


def filter_degree(pairs: RitzPairs[P], cut: float, largest: int, precision: float) -> int:
    """Degree that keeps the components of one filter within ``LARGEST_AMPLIFICATION``."""
    limit = min(LARGEST_AMPLIFICATION, 0.01 / precision)
    reach = _reach(pairs, float(pairs.values[0]), cut)
    return max(2, min(largest, int(math.acosh(limit) / reach)))


def degree_of_gain(pairs: RitzPairs[P], wanted: float, cut: float, gain: float) -> int:
    """Degree whose Chebyshev polynomial is that many times as large at ``wanted`` as at the cut."""
    return math.ceil(math.acosh(gain) / _reach(pairs, wanted, cut))


def _reach(pairs: RitzPairs[P], value: float, cut: float) -> float:
    """t with T_d = cosh(d·t) at a value above the cut, T_d the polynomial on [lower, cut]."""
    half = _half_width(pairs, cut)
    return math.acosh(1.0 + max(value - cut, 1e-12 * half) / half)


def refine(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    pairs: RitzPairs[P],
    dual: FloatArray,
    degree: int,
    *,
    wanted: int | None = None,
    extra: P | None = None,
    locked: RitzPairs[P] | None = None,
) -> RitzPairs[P]:
    """One filter and Rayleigh–Ritz step: ``degree`` products.

    Parameters
    ----------
    wanted : number of leading pairs to filter, all when None; the rest stays in the subspace, where
        what it holds of the eigenvectors next to the wanted ones takes those out of the filtered
        columns. That finds the wanted pairs with no more products than a filter of all, and with
        fewer columns (measured)
    extra : columns to add to the subspace, which grows by them; unfiltered ones cost one product
        more
    locked : pairs to which the subspace is kept orthogonal
    """
    if pairs.values.size >= algebra.n:
        return rayleigh_ritz(algebra, pairs.vectors, pairs.image, dual, pairs.lower)
    if extra is not None:
        fresh = orthonormalise(algebra, extra, against=[pairs.vectors])
        basis = concatenate(algebra, pairs.vectors, fresh)
        image = concatenate(algebra, pairs.image, operator.matmat(fresh))
        pairs = RitzPairs(
            np.append(pairs.values, np.full(fresh.shape[1], pairs.values[-1])),
            basis,
            image,
            pairs.lower,
        )
    cut = float(pairs.values[-1])
    degree = filter_degree(pairs, cut, degree, algebra.precision)
    if wanted is not None and wanted < pairs.values.size:
        moved = filtered(operator, algebra, leading(algebra, pairs, wanted), dual, degree, cut)
        fresh = orthonormalise(algebra, moved, against=[pairs.vectors])
        if fresh.shape[1] == wanted:
            blocks, images = [pairs.vectors, fresh], [pairs.image, operator.matmat(fresh)]
            count = pairs.values.size
            return ritz_in_blocks(algebra, blocks, images, dual, pairs.lower, count)
        # Near the precision of the panels nothing is left of some columns outside the subspace:
        # it is made anew, which also renews what many rotations have rounded.
    basis = orthonormalise(
        algebra,
        filtered(operator, algebra, pairs, dual, degree, cut),
        against=[] if locked is None else [locked.vectors],
    )
    return rayleigh_ritz(algebra, basis, operator.matmat(basis), dual, pairs.lower)


def top_eigenpairs(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    wanted: int,
    *,
    dual: FloatArray | None = None,
    tolerance: float = 1e-6,
    start: RitzPairs[P] | None = None,
    max_refinements: int = 50,
) -> RitzPairs[P]:
    """The ``wanted`` algebraically largest eigenpairs of G + Diag(y).

    Pairs whose residual has reached the tolerance are locked: they leave the filter and the rest
    of the subspace is kept orthogonal to them, until a last Rayleigh–Ritz step over everything.

    Parameters
    ----------
    dual : y, (n,), zeros when None
    tolerance : residual ‖A·v − θ·v‖ at which a pair counts as found, relative to the largest |θ|
    start : pairs of a nearby matrix to start from; one product instead of a Krylov subspace
    max_refinements : most filter steps

    Returns
    -------
    RitzPairs
        At least ``wanted`` pairs, or all n; those behind the wanted ones are less accurate.
    """
    n = algebra.n
    dual = np.zeros(n) if dual is None else dual
    size = n if 3 * wanted >= n else math.ceil(1.3 * wanted) + 8
    if start is None:
        pairs, _ = krylov_start(operator, algebra, dual, size)
    else:
        image = operator.matmat(start.vectors)
        pairs = rayleigh_ritz(algebra, start.vectors, image, dual, start.lower)
    locked: RitzPairs[P] | None = None
    for _ in range(max_refinements):
        held = 0 if locked is None else locked.values.size
        active = min(wanted - held, pairs.values.size)
        limit = tolerance * max(abs(float(pairs.values[0])), abs(pairs.lower), 1e-300)
        found = residual_norms(algebra, pairs, dual, active) <= limit
        settled = int(np.argmin(found)) if not found.all() else active
        if settled == active or held + pairs.values.size >= n:
            break
        locked, pairs = _lock(algebra, locked, pairs, settled)
        pairs = refine(operator, algebra, pairs, dual, LARGEST_DEGREE, locked=locked)
    if locked is None:
        return pairs
    return rayleigh_ritz(
        algebra,
        concatenate(algebra, locked.vectors, pairs.vectors),
        concatenate(algebra, locked.image, pairs.image),
        dual,
        pairs.lower,
    )


def _lock(
    algebra: PanelAlgebra[P], locked: RitzPairs[P] | None, pairs: RitzPairs[P], count: int
) -> tuple[RitzPairs[P] | None, RitzPairs[P]]:
    """Move the first ``count`` pairs to the locked ones."""
    if count == 0:
        return locked, pairs
    first = leading(algebra, pairs, count)
    rest = slice(count, None)
    remaining = RitzPairs(
        pairs.values[rest],
        select(algebra, pairs.vectors, rest),
        select(algebra, pairs.image, rest),
        pairs.lower,
    )
    if locked is None:
        return first, remaining
    grown = RitzPairs(
        np.append(locked.values, first.values),
        concatenate(algebra, locked.vectors, first.vectors),
        concatenate(algebra, locked.image, first.image),
        pairs.lower,
    )
    return grown, remaining
