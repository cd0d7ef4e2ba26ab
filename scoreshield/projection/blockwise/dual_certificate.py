"""The certificate of an exact projection that products found, independent of how it was found.

For X̃ feasible, A = G + Diag(y) and Z = X̃ − A + εI ⪰ 0,

    ‖X̃ − X*‖² ≤ −⟨X̃ − G, X* − X̃⟩ = −⟨Z − εI, X* − X̃⟩ ≤ ⟨X̃ − A, X̃⟩ + εn,

because X̃ and X* have the same diagonal. ε is what the smallest eigenvalue of X̃ − A lacks to 0. That
eigenvalue is estimated: from above, by the smallest Ritz value θ in the kept pairs and a Krylov
subspace outside them. Some eigenvalue is no further from θ than the residual of its Ritz pair (B.
N. Parlett, "The Symmetric Eigenvalue Problem", 1998, section 4.5), which is stated beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic

import numpy as np

from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.panels import (
    P,
    PanelAlgebra,
    PanelOperator,
    Term,
    concatenate,
    rows_in_unit_ball,
    scale_rows,
    select,
    unit_rows,
)
from scoreshield.projection.blockwise.subspace import (
    RitzPairs,
    factor_of,
    krylov_blocks,
    ritz_in_blocks,
)
from scoreshield.projection.certificate import Certificate, smallest_eigenvalue_bound
from scoreshield.projection.operator import FloatArray

PROBE_BLOCK = 8
PROBE_DEPTH = 12
"""Block Krylov subspace, orthogonal to the kept pairs, in which the certificate looks for a missed
eigenvalue."""

DUAL_EIGENVALUE = (
    "smallest Ritz value: an upper bound of the smallest eigenvalue, with an eigenvalue no further "
    "away than its residual; gap and distance bound rest on it"
)
"""What a manifest says of ``dual_smallest_eigenvalue``. No number of products proves that a matrix
has no smaller eigenvalue than the ones that were found."""


@dataclass(frozen=True, eq=False)
class Verdict(Generic[P]):
    """What the certificate found at a dual point.

    Attributes
    ----------
    factor, diagonal : X̃ = F·Fᵀ + Diag(d), feasible
    certificate : its bounds
    eigenvalue_residual : ‖(X̃ − A)·v − θ·v‖ of the smallest Ritz pair of X̃ − A
    largest : ‖P₊(A)‖₂
    missed : orthonormal directions, (n, p), along which X̃ − A is smallest outside the kept pairs
    """

    factor: P
    diagonal: FloatArray
    certificate: Certificate
    eigenvalue_residual: float
    largest: float
    missed: P

    def accepted(self, tolerance: float) -> bool:
        """Whether residual and smallest eigenvalue are as small as the tolerance asks."""
        smallest = self.certificate.dual_smallest_eigenvalue
        return (
            self.certificate.diagonal_residual <= tolerance
            and smallest is not None
            and smallest >= -10.0 * tolerance * self.largest
        )


def verdict_at(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    pairs: RitzPairs[P],
    dual: FloatArray,
    residual: float,
    density: SpectralDensity,
) -> Verdict[P]:
    """X̃ = D^-½ P₊(A) D^-½ with its certificate, and where an eigenvalue may be missed.

    Parameters
    ----------
    operator : G, with unit diagonal
    algebra : home of the panels
    pairs : leading Ritz pairs of A = G + Diag(y)
    dual : y, (n,)
    residual : rms diagonal residual of P₊(A) on them
    density : spectral density of G
    """
    rows = factor_of(algebra, pairs.vectors, pairs.values[: pairs.positive])
    factor, diagonal = rows_in_unit_ball(algebra, unit_rows(algebra, rows))
    missed, missed_image = _outside(operator, algebra, pairs, dual)
    basis = concatenate(algebra, pairs.vectors, missed)
    image = concatenate(algebra, pairs.image, missed_image)
    shifted = algebra.combine([Term(image), Term(basis, row_scale=dual)])
    reduced = algebra.inner(basis, shifted)
    overlap = algebra.inner(factor, basis)
    diagonals = algebra.inner(basis, scale_rows(algebra, basis, diagonal))
    slack = overlap.T @ overlap + diagonals - 0.5 * (reduced + reduced.T)
    values, rotation = np.linalg.eigh(slack)
    smallest = float(values[0])
    return Verdict(
        factor=factor,
        diagonal=diagonal,
        certificate=_certificate(
            operator, algebra, factor, diagonal, (dual, residual, density), smallest
        ),
        eigenvalue_residual=_slack_residual(
            algebra, factor, diagonal, basis, shifted, smallest, rotation[:, :1]
        ),
        largest=float(pairs.values[0]),
        missed=missed,
    )


def _outside(
    operator: PanelOperator[P], algebra: PanelAlgebra[P], pairs: RitzPairs[P], dual: FloatArray
) -> tuple[P, P]:
    """Block Krylov subspace of A orthogonal to the kept pairs, and its image G·V."""
    vectors = pairs.vectors
    blocks, images = krylov_blocks(
        operator,
        algebra,
        dual,
        algebra.start(PROBE_BLOCK, first=20_000),
        PROBE_DEPTH,
        against=[vectors],
    )
    if not blocks:
        nothing = select(algebra, vectors, slice(0, 0))
        return nothing, nothing
    found = ritz_in_blocks(algebra, blocks, images, dual, pairs.lower, 2 * PROBE_BLOCK)
    return found.vectors, found.image


def _slack_residual(
    algebra: PanelAlgebra[P],
    factor: P,
    diagonal: FloatArray,
    basis: P,
    shifted: P,
    value: float,
    vector: FloatArray,
) -> float:
    """‖(X̃ − A)·v − θ·v‖ for v in the span of a basis with A·basis at hand."""
    direction = algebra.combine([Term(basis, vector)])
    remainder = algebra.combine(
        [
            Term(factor, algebra.inner(factor, direction)),
            Term(direction, row_scale=diagonal - value),
            Term(shifted, -vector),
        ]
    )
    return float(np.sqrt(algebra.inner(remainder, remainder)[0, 0]))


def _certificate(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    factor: P,
    diagonal: FloatArray,
    point: tuple[FloatArray, float, SpectralDensity],
    smallest: float,
) -> Certificate:
    """The bounds that ``smallest``, the least eigenvalue of X̃ − A that was found, leads to."""
    (dual, residual, density), n = point, algebra.n
    gram = algebra.inner(factor, factor)
    squared = float(np.sum(gram**2)) + float(
        diagonal @ (diagonal + 2.0 * algebra.row_inner(factor, factor))
    )
    # ⟨X̃ − A, X̃⟩ with A·F from one product; the diagonal d meets the unit diagonal of G.
    applied = algebra.combine([Term(operator.matmat(factor)), Term(factor, row_scale=dual)])
    inner = float(np.trace(algebra.inner(factor, applied)))
    inner += float(diagonal @ (1.0 + dual))
    gap = max(squared - inner, 0.0) + n * max(-smallest, 0.0)
    with_noisy = inner - float(dual.sum())
    primal = 0.5 * max(squared - 2.0 * with_noisy + density.sum_of_squares, 0.0)
    return Certificate(
        smallest_eigenvalue_bound=smallest_eigenvalue_bound(factor, diagonal),
        diagonal_residual=residual,
        relative_gap=gap / (1.0 + primal + abs(primal - gap)),
        distance_bound=math.sqrt(gap),
        dual_smallest_eigenvalue=smallest,
    )
