"""Tall panels (n × k) that may live elsewhere, and the algebra that solvers need of them.

A blockwise solver keeps k × k arrays and vectors of n numbers; its panels may be arrays in memory,
or files in row ranges on many workers. :class:`PanelAlgebra` is all that a home of panels has to
offer: a deterministic start, two reductions, and one linear combination. The rest is written once,
here, in terms of them. :class:`ArrayPanels` is the home in memory.

Reductions add up in float64 whatever the panels are stored in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.linalg

from scoreshield.errors import ParameterError
from scoreshield.projection.operator import FloatArray


class Panel(Protocol):
    """A tall matrix; only its shape (n, k) is known here."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        ...


P = TypeVar("P", bound=Panel)


@dataclass(frozen=True, eq=False)
class Term(Generic[P]):
    """Diag(s)·A·C, one term of a linear combination of panels.

    Attributes
    ----------
    panel : A, (n, k)
    coefficients : C, (k, l), or a number for a multiple of the identity
    row_scale : s, (n,), or None for ones
    """

    panel: P
    coefficients: FloatArray | float = 1.0
    row_scale: FloatArray | None = None


class PanelAlgebra(Protocol[P]):
    """What a home of panels offers. Every call returns a new panel and leaves the old ones alone.

    ``precision`` is the unit of rounding of the stored numbers.
    """

    @property
    def n(self) -> int:
        """Rows of every panel."""
        ...

    @property
    def precision(self) -> float:
        """Spacing of the stored numbers at 1: 2.2e-16 for float64, 1.2e-7 for float32."""
        ...

    def start(self, columns: int, *, first: int = 0) -> P:
        """Columns ``first`` to ``first + columns`` of :func:`start_pattern`, (n, columns)."""
        ...

    def inner(self, left: P, right: P) -> FloatArray:
        """AᵀB, (n, k) and (n, l) → (k, l) float64."""
        ...

    def row_inner(self, left: P, right: P) -> FloatArray:
        """⟨Aᵢ, Bᵢ⟩ for every row i, two (n, k) → (n,) float64."""
        ...

    def combine(self, terms: Sequence[Term[P]]) -> P:
        """Σ Diag(s)·A·C over the terms, → (n, l)."""
        ...


class PanelOperator(Protocol[P]):
    """A symmetric n × n matrix known by its products with panels."""

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        ...

    def matmat(self, W: P, /) -> P:
        """Product G·W, (n, k) → (n, k)."""
        ...


class CountedProducts(Generic[P]):
    """A panel operator with its products counted.

    ``products`` is the number of products G × (n × k), ``columns`` the sum of their k.
    """

    def __init__(self, operator: PanelOperator[P], products: int = 0) -> None:
        self._operator = operator
        self.products = products
        self.columns = 0

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return self._operator.n

    def matmat(self, W: P, /) -> P:
        """Product G·W, (n, k) → (n, k); adds 1 to ``products`` and k to ``columns``."""
        self.products += 1
        self.columns += W.shape[1]
        return self._operator.matmat(W)


class ArrayPanels:
    """Panels as arrays in memory.

    Parameters
    ----------
    n : rows of every panel
    dtype : float64 or float32, in which panels are stored; reductions are float64 in either case

    Raises
    ------
    ParameterError
        For another type.
    """

    def __init__(self, n: int, dtype: npt.DTypeLike = np.float64) -> None:
        self._n = n
        self._dtype = np.dtype(dtype)
        if self._dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
            raise ParameterError(
                f"panels of dtype {self._dtype} were asked for, expected float64 or float32"
            )

    @property
    def n(self) -> int:
        """Rows of every panel."""
        return self._n

    @property
    def precision(self) -> float:
        """Spacing of the stored numbers at 1."""
        return float(np.finfo(self._dtype).eps)

    def start(self, columns: int, *, first: int = 0) -> npt.NDArray[Any]:
        """Columns ``first`` to ``first + columns`` of :func:`start_pattern`, (n, columns)."""
        return start_pattern(range(self._n), range(first, first + columns)).astype(self._dtype)

    def inner(self, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> FloatArray:
        """AᵀB, (n, k) and (n, l) → (k, l) float64."""
        product: FloatArray = left.T.astype(np.float64, copy=False) @ right.astype(
            np.float64, copy=False
        )
        return product

    def row_inner(self, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> FloatArray:
        """⟨Aᵢ, Bᵢ⟩ for every row i, two (n, k) → (n,) float64."""
        result: FloatArray = np.einsum("ij,ij->i", left, right, dtype=np.float64)
        return result

    def combine(self, terms: Sequence[Term[npt.NDArray[Any]]]) -> npt.NDArray[Any]:
        """Σ Diag(s)·A·C over the terms, → (n, l)."""
        total: npt.NDArray[Any] | None = None
        for term in terms:
            value = self._value(term)
            total = value if total is None else np.add(total, value, out=total)
        if total is None:
            raise ParameterError("a combination of no panels was asked for, expected at least one")
        return total

    def _value(self, term: Term[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        value: npt.NDArray[Any]
        if isinstance(term.coefficients, np.ndarray):
            value = term.panel @ term.coefficients.astype(self._dtype, copy=False)
        else:
            value = term.panel * np.asarray(term.coefficients, self._dtype)
        if term.row_scale is not None:
            value = value * term.row_scale.astype(self._dtype, copy=False)[:, None]
        return value


def start_pattern(rows: range, columns: range) -> FloatArray:
    """Numbers in (−1, 1) that look random and depend on their position alone, (rows, columns).

    SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) of the position: any row range of a panel is made
    where it is kept, and every run of a solver starts at the same point.
    """
    row = np.arange(rows.start, rows.stop, dtype=np.uint64)[:, None]
    column = np.arange(columns.start, columns.stop, dtype=np.uint64)[None, :]
    state = _splitmix(_splitmix(column) + row)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-52 - (1.0 - 2.0**-53)


def select(algebra: PanelAlgebra[P], panel: P, columns: slice) -> P:
    """The columns of a slice, (n, k) → (n, l)."""
    return algebra.combine([Term(panel, np.eye(panel.shape[1])[:, columns])])


def scale_rows(algebra: PanelAlgebra[P], panel: P, scale: FloatArray) -> P:
    """Diag(s)·A."""
    return algebra.combine([Term(panel, row_scale=scale)])


def concatenate(algebra: PanelAlgebra[P], left: P, right: P) -> P:
    """[A B], (n, k) and (n, l) → (n, k + l)."""
    k = left.shape[1]
    identity = np.eye(k + right.shape[1])
    return algebra.combine([Term(left, identity[:k]), Term(right, identity[k:])])


def orthonormalise(algebra: PanelAlgebra[P], panel: P, against: Sequence[P] = ()) -> P:
    """Orthonormal basis of the columns of A, dependent ones dropped, (n, k) → (n, l ≤ k).

    CholeskyQR twice (Yamamoto et al., ETNA 44 (2015) 306–326): the second pass brings the loss of
    orthogonality, κ(A)² times the unit of rounding after the first one, down to that unit. The
    first pass pivots and stops where a column is dependent on the ones before it, so κ stays below
    the 10⁸ that the argument needs.

    Parameters
    ----------
    panel : A
    against : panels, orthonormal together, to which the result shall be orthogonal as well
    """
    gram = algebra.inner(panel, panel)
    norms = _column_norms(gram)
    if against:
        panel, gram, norms = _outside(algebra, panel, norms, against)
    panel = _cholesky_pass(algebra, panel, gram, norms)
    if against:
        panel = _without(algebra, panel, against)
    return _cholesky_pass(algebra, panel, algebra.inner(panel, panel), np.ones(panel.shape[1]))


def rows_in_unit_ball(algebra: PanelAlgebra[P], factor: P) -> tuple[P, FloatArray]:
    """Rows of norm above 1 scaled to norm 1, and the diagonal d = 1 − ‖Fᵢ‖² ≥ 0 of the rest."""
    norms = np.sqrt(algebra.row_inner(factor, factor))
    shortfall = 1.0 - (factor.shape[1] + 4) * algebra.precision
    scaled = scale_rows(algebra, factor, np.minimum(1.0, shortfall / np.maximum(norms, 1e-300)))
    return scaled, np.maximum(1.0 - algebra.row_inner(scaled, scaled), 0.0)


def unit_rows(algebra: PanelAlgebra[P], factor: P) -> P:
    """Rows scaled to norm 1; rows of zeros stay."""
    norms = np.sqrt(algebra.row_inner(factor, factor))
    return scale_rows(algebra, factor, 1.0 / np.where(norms > 0.0, norms, 1.0))


def _outside(
    algebra: PanelAlgebra[P], panel: P, norms: FloatArray, held: Sequence[P]
) -> tuple[P, FloatArray, FloatArray]:
    """What of the columns is orthogonal to the held panels, its Gram matrix and its norms.

    A norm is 0 where it is rounding.

    Twice is enough (W. Kahan, in Parlett 1998, section 6.9): the second time takes out what
    rounding left of the first where little of a column remains, and is saved where much does.
    """
    left = norms
    for _ in range(2):
        before = left
        panel = _without(algebra, panel, held)
        gram = algebra.inner(panel, panel)
        left = _column_norms(gram)
        left = np.where(left > 30.0 * algebra.precision * norms, left, 0.0)
        if (left >= 0.1 * before).all():
            break
    return panel, gram, left


def _without(algebra: PanelAlgebra[P], panel: P, held: Sequence[P]) -> P:
    """The columns less their projections on panels that are orthonormal together."""
    overlaps = [Term(part, -algebra.inner(part, panel)) for part in held]
    return algebra.combine([Term(panel), *overlaps])


def _column_norms(gram: FloatArray) -> FloatArray:
    norms: FloatArray = np.sqrt(np.diag(gram))
    return norms


def _cholesky_pass(algebra: PanelAlgebra[P], panel: P, gram: FloatArray, norms: FloatArray) -> P:
    """The columns times the inverse of their Cholesky factor, those of norm 0 left out."""
    inverse_norms = np.where(norms > 0.0, 1.0 / np.where(norms > 0.0, norms, 1.0), 0.0)
    gram = gram * np.outer(inverse_norms, inverse_norms)
    dependent = max(1e-13, 1e3 * algebra.precision**2)
    upper, pivots, rank, _ = scipy.linalg.lapack.dpstrf(gram, tol=dependent)
    if np.max(np.diag(gram), initial=0.0) <= dependent:
        # LAPACK holds every pivot but the first one against the tolerance.
        rank = 0
    kept = pivots[:rank] - 1
    inverse = scipy.linalg.solve_triangular(np.triu(upper[:rank, :rank]), np.eye(rank))
    coefficients = np.zeros((gram.shape[0], rank))
    coefficients[kept] = inverse_norms[kept, None] * inverse
    return algebra.combine([Term(panel, coefficients)])


def _splitmix(position: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # Overflow is what the hash is made of.
    z = position * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
