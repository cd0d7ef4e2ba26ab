"""Optimal eigenvalue shrinkage by products with G alone; the theory is in ``shrink``.

Only the eigenpairs above the noise edge are needed. Lanczos quadrature says about how many there
are, a filtered subspace finds them, and it grows until its last Ritz value lies below the edge.
Embeddings of d numbers have at most d spikes, so that more than n/8 of them mean a small n: then
the subspace is the whole space, and the risks are compared on the full spectrum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.handover import nearest_after
from scoreshield.projection.blockwise.nearest import NearestState
from scoreshield.projection.blockwise.panels import (
    CountedProducts,
    P,
    PanelAlgebra,
    PanelOperator,
    rows_in_unit_ball,
)
from scoreshield.projection.blockwise.subspace import (
    LARGEST_DEGREE,
    RitzPairs,
    factor_of,
    krylov_start,
    refine,
    residual_norms,
    spectral_density,
)
from scoreshield.projection.certificate import Certificate, smallest_eigenvalue_bound
from scoreshield.projection.conjugate_gradient import root_mean_square
from scoreshield.projection.dense.eigen import uniform_dual_shift
from scoreshield.projection.dense.shrink import (
    EXACT_RULE,
    FALLBACK_TOLERANCE,
    MANY_SPIKES,
    SPIKED_RULE,
    Risks,
    SpikeModel,
    compared_risks,
    require_sigma,
    signal_threshold,
    spike_model,
)
from scoreshield.projection.request import report, require_tolerance
from scoreshield.projection.result import Iteration, Plain, continued
from scoreshield.projection.solution import Solution


@dataclass(frozen=True, eq=False)
class ShrinkState(Generic[P]):
    """Where the search for the spikes stands.

    Attributes
    ----------
    pairs : leading Ritz pairs of G
    density : spectral density of G
    history : steps so far; the residual is the largest ‖G·v − θ·v‖ of a spike, relative to θ₁
    products : products G × (n × k) so far
    """

    pairs: RitzPairs[P]
    density: SpectralDensity
    history: tuple[Iteration, ...]
    products: int


@dataclass(frozen=True, eq=False)
class HandoverState(Generic[P]):
    """Where the exact projection stands that has taken over.

    Attributes
    ----------
    search : the finished search for the spikes, whose risks decided so
    exact : the exact projection so far
    """

    search: ShrinkState[P]
    exact: NearestState[P]

    @property
    def history(self) -> tuple[Iteration, ...]:
        """All steps so far."""
        return continued(self.search.history, self.exact.history)


def shrink_blockwise(
    operator: PanelOperator[P],
    algebra: PanelAlgebra[P],
    *,
    sigma: float,
    tolerance: float = 1e-4,
    max_iterations: int = 100,
    progress: Callable[[Iteration], None] | None = None,
    checkpoint: Callable[[ShrinkState[P] | HandoverState[P]], None] | None = None,
    resume_from: ShrinkState[P] | HandoverState[P] | None = None,
) -> Solution[P]:
    """Feasible estimate of the clean Gram matrix, panels wherever the algebra keeps them.

    Parameters
    ----------
    operator : G, with unit diagonal
    algebra : home of the panels
    sigma : standard deviation σ ≥ 0 of the off-diagonal noise
    tolerance : residual ‖G·v − θ·v‖ of every spike, relative to the largest θ
    max_iterations : most refinements of the subspace
    progress, checkpoint : called after each refinement, and after each step of the exact projection
        where it takes over; the latter with the state
    resume_from : a state to go on from

    Returns
    -------
    Solution
        ``converged`` is False when the refinements ran out.

    Raises
    ------
    ParameterError
        For a σ or a tolerance outside its domain.
    """
    require_sigma(sigma)
    require_tolerance(tolerance, max_iterations)
    search = SpikeSearch(operator, algebra, sigma)
    reached: NearestState[P] | None = None
    told: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint}
    if isinstance(resume_from, HandoverState):
        searched, reached = search.resumed(resume_from.search), resume_from.exact
    else:
        searched = search.finished(resume_from, tolerance, max_iterations, **told)
    spiked, risks = search.solution(searched, tolerance, search.found(searched, tolerance))
    if risks is None or not risks.prefer_exact:
        return spiked
    exact = nearest_after(
        searched.history,
        operator,
        algebra,
        tolerance=FALLBACK_TOLERANCE,
        max_iterations=max_iterations,
        state=lambda exact: HandoverState(searched, exact),
        resume_from=reached,
        **told,
    )
    parameters = {**exact.parameters, **spiked.parameters, "rule": EXACT_RULE}
    products = spiked.products + exact.products
    return replace(exact, method="shrink", parameters=parameters, products=products)


class SpikeSearch(Generic[P]):
    """The steps of the search for the eigenpairs above the noise edge."""

    def __init__(self, operator: PanelOperator[P], algebra: PanelAlgebra[P], sigma: float) -> None:
        self._operator = CountedProducts(operator)
        self._algebra = algebra
        self._sigma = sigma
        self._zero = np.zeros(algebra.n)

    def start(self) -> ShrinkState[P]:
        """A Krylov subspace a third wider than the expected number of spikes."""
        n = self._algebra.n
        density = spectral_density(self._operator, self._algebra)
        expected = density.mass_above(max(signal_threshold(n, self._sigma), 1e-9))
        if expected > MANY_SPIKES * n:
            expected = self._kept_by_exact_projection(density)
        return self._from_width(_width(expected, n), ())

    def resumed(self, state: ShrinkState[P]) -> ShrinkState[P]:
        """The state as it is, its products counted on."""
        self._operator.products = state.products
        return state

    def finished(
        self,
        reached: ShrinkState[P] | None,
        tolerance: float,
        max_iterations: int,
        progress: Callable[[Iteration], None] | None,
        checkpoint: Callable[[ShrinkState[P]], None] | None,
    ) -> ShrinkState[P]:
        """The state at which the search ends, from one that was reached or from its start."""
        state = self.start() if reached is None else self.resumed(reached)
        while True:
            report(progress, state.history)
            if checkpoint is not None:
                checkpoint(state)
            if self.found(state, tolerance) or len(state.history) >= max_iterations:
                return state
            state = self.step(state)

    def found(self, state: ShrinkState[P], tolerance: float) -> bool:
        """Whether all that the rules need is known to the tolerance."""
        return self.covered(state) and state.history[-1].residual <= tolerance

    def covered(self, state: ShrinkState[P]) -> bool:
        """Whether the subspace reaches as far down the spectrum as the rules need."""
        width = state.pairs.values.size
        if width >= self._algebra.n:
            return True
        if self._model(state.pairs).many:
            shift = uniform_dual_shift(state.pairs.values, float(self._algebra.n))
            return float(state.pairs.values[-1]) + shift <= 0.0
        return self._settled(state.pairs)

    def step(self, state: ShrinkState[P]) -> ShrinkState[P]:
        """The subspace refined, and widened where it does not reach down far enough."""
        n, width = self._algebra.n, state.pairs.values.size
        model = self._model(state.pairs)
        if model.many:
            wanted = _width(self._kept_by_exact_projection(state.density), n)
            if wanted > width:
                return self._from_width(wanted, state.history)
        extra = None
        if model.count > 0.9 * width and width < n:
            extra = self._algebra.start(min(max(width // 2, 8), n - width), first=10_000 + width)
        pairs = refine(
            self._operator, self._algebra, state.pairs, self._zero, LARGEST_DEGREE, extra=extra
        )
        return self._state(pairs, state.density, state.history)

    def solution(
        self, state: ShrinkState[P], tolerance: float, converged: bool
    ) -> tuple[Solution[P], Risks | None]:
        """The shrunk estimate, and the risks of the two rules where the spikes are not few."""
        algebra, pairs = self._algebra, state.pairs
        model = self._model(pairs)
        rows = factor_of(algebra, pairs.vectors, model.images(pairs.values))
        norms = algebra.row_inner(rows, rows)
        factor, diagonal = rows_in_unit_ball(algebra, rows)
        parameters: dict[str, Plain] = {
            **model.parameters(),
            "form": "blockwise",
            "tolerance": tolerance,
            "rule": SPIKED_RULE,
            "subspace": pairs.values.size,
            "columns": self._operator.columns,
        }
        risks = None
        if model.many:
            rest = state.density.below(pairs.values.size)
            risks = compared_risks(model, pairs.values, rest, norms)
            parameters |= risks.parameters()
        certificate = Certificate(
            smallest_eigenvalue_bound=smallest_eigenvalue_bound(factor, diagonal),
            diagonal_residual=root_mean_square(norms - 1.0),
        )
        solution = Solution(
            factor=factor,
            diagonal=diagonal,
            method="shrink",
            certificate=certificate,
            parameters=parameters,
            history=state.history,
            products=self._operator.products,
            converged=converged,
        )
        return solution, risks

    def _from_width(self, width: int, history: tuple[Iteration, ...]) -> ShrinkState[P]:
        pairs, density = krylov_start(self._operator, self._algebra, self._zero, width)
        return self._state(pairs, density, history)

    def _state(
        self, pairs: RitzPairs[P], density: SpectralDensity, history: tuple[Iteration, ...]
    ) -> ShrinkState[P]:
        spikes, number = self._model(pairs).count, len(history) + 1
        residual = 0.0
        if spikes:
            norms = residual_norms(self._algebra, pairs, self._zero, spikes)
            residual = float(norms.max()) / float(pairs.values[0])
        products = self._operator.products
        step = Iteration(number, residual, spikes, number, products)
        return ShrinkState(pairs, density, (*history, step), products)

    def _settled(self, pairs: RitzPairs[P]) -> bool:
        """Whether the first pair below the threshold is sure to stay there."""
        model = self._model(pairs)
        if model.count >= pairs.values.size:
            return False
        norms = residual_norms(self._algebra, pairs, self._zero, model.count + 1)
        reach, size = float(norms[-1]), float(np.abs(pairs.values).max())
        return float(pairs.values[model.count]) + reach < model.threshold or reach <= 1e-6 * size

    def _model(self, pairs: RitzPairs[P]) -> SpikeModel:
        largest = float(np.abs(pairs.values).max())
        rounding = self._algebra.precision * math.sqrt(self._algebra.n) * largest
        return spike_model(pairs.values, self._algebra.n, self._sigma, rounding)

    def _kept_by_exact_projection(self, density: SpectralDensity) -> float:
        return density.mass_above(-density.shift_for_trace(float(self._algebra.n)))


def _width(expected: float, n: int) -> int:
    """Columns of a subspace for about so many eigenpairs."""
    wanted = math.ceil(1.3 * expected) + 12
    return n if 2 * wanted >= n else wanted
