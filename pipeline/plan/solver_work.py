"""What a blockwise projection typically does, foretold: pure, sizes in and counts out.

How many eigenpairs a method keeps follows from a model of the noisy spectrum: the semicircle of the
noise, |λ| ≤ R = 2σ√n, and k equal spikes above it. How many products and steps it then takes
follows from how far those spikes stand out: √n/σ components at most can rise above the noise, and
its decimal logarithm is the measure used here, 2.5 where spikes stand out and below 0 where noise
alone is left. The constants are fitted to counts of real solves (``benchmarks/solver_work.py``,
n = 1000 to 8000, σ = 0.1 to 100, tolerance 1e-4; ``nearest`` up to n = 100,000) and hold for other
data within a factor of 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.projection.blockwise.nearest import (
    PROBE_BLOCK,
    PROBE_DEPTH,
    SPARE_PAIRS,
    kept_pairs,
)
from scoreshield.projection.blockwise.subspace import DENSITY_BLOCK, DENSITY_DEPTH, KRYLOV_DEPTH

FLOAT32 = 4

SHARE_THAT_STANDS_OUT = 0.5
"""Spectra fall: of the components that could stand out if all were equal, about half do."""

EIGENDECOMPOSITION_FLOPS = 9
"""A symmetric eigendecomposition with all vectors takes about 9 k³ operations."""

REFINEMENT_PRODUCTS = 8
FILTER_PRODUCTS = 6


@dataclass(frozen=True)
class SolverWork:
    """The work of one projection.

    Attributes
    ----------
    rank : columns of the factor
    products : G × (n × k) with the noisy matrix, each of which passes over all its blocks
    columns : the sum of their k
    computed_products, computed_columns : the same with what the box steps of ``aap`` change, which
        is computed
    factor_columns : the sum of the ranks of the iterates that those are computed from
    steps : operations on panels besides
    panel_bytes : bytes that those read and write
    panel_flops : operations of those
    driver_flops : operations of the small eigenproblems that the driver solves
    """

    rank: int
    products: int
    columns: int
    computed_products: int
    computed_columns: int
    factor_columns: int
    steps: int
    panel_bytes: int
    panel_flops: int
    driver_flops: int

    @property
    def mean_columns(self) -> int:
        """Columns of a typical product."""
        products = self.products + self.computed_products
        return max(1, round((self.columns + self.computed_columns) / max(1, products)))


@dataclass(frozen=True)
class _Spectrum:
    """The model: n, R and k equal spikes."""

    n: int
    radius: float
    spikes: int
    decades: float
    """Decimal logarithm of how many components could stand out."""
    borders_on_noise: bool
    """Whether noise, not the number of features, limits the spikes: some then hardly stand out,
    and finding them takes more than the one filter that finds the rest, or that there are none."""

    def exact_rank(self) -> int:
        """Positive eigenvalues of the exact projection, G + y·I cut at 0 with trace n.

        k spikes of the clean matrix, each n/k, are k·θ with θ = n/k + σ²k of the noisy one.
        """
        variance = self.radius**2 / (4 * self.n)
        theta = self.n / self.spikes + variance * self.spikes if self.spikes else 0.0
        low, high = -self.radius, self.radius
        for _ in range(60):
            cut = 0.5 * (low + high)
            trace = self.spikes * max(theta - cut, 0.0) + self._above(cut)[1]
            low, high = (cut, high) if trace > self.n else (low, cut)
        return min(self.n, self.spikes + math.ceil(self._above(low)[0]))

    def columns(self, products: int, width: int) -> int:
        """Columns of so many products, the first of which estimate the spectral density."""
        narrow = min(DENSITY_BLOCK, self.n)
        return DENSITY_DEPTH * narrow + (products - DENSITY_DEPTH) * width

    def _above(self, cut: float) -> tuple[float, float]:
        """Eigenvalues of the semicircle above a cut: their number, and Σ (λ − cut)."""
        if self.radius == 0.0:
            return 0.0, 0.0
        u = cut / self.radius
        root = math.sqrt(max(0.0, 1.0 - u * u))
        number = self.n * (math.acos(u) - u * root) / math.pi
        total = self.n * self.radius * 2.0 / (3.0 * math.pi) * root**3
        return number, total - cut * number


def foretell_work(mechanism: Mechanism, method: str) -> SolverWork:
    """Typical work of a method on a matrix of that size and noise."""
    return _METHODS[method](_spectrum(mechanism))


def _spectrum(mechanism: Mechanism) -> _Spectrum:
    n, d, sigma = mechanism.n, mechanism.d, mechanism.sigma
    standing = math.sqrt(n) / sigma
    spikes = min(float(d), float(n), SHARE_THAT_STANDS_OUT * standing)
    return _Spectrum(
        n,
        2.0 * sigma * math.sqrt(n),
        int(spikes),
        math.log10(standing),
        borders_on_noise=spikes < min(d, n),
    )


def _shrink(spectrum: _Spectrum) -> SolverWork:
    width = min(spectrum.n, math.ceil(1.3 * spectrum.spikes) + 12)
    products = 45 if spectrum.borders_on_noise and spectrum.spikes > 2 else 30
    columns = spectrum.columns(products, width)
    return _worked(
        spectrum,
        rank=spectrum.spikes,
        products=products,
        columns=columns,
        steps=330 + 2.5 * products,
        passes=25,
        largest=KRYLOV_DEPTH * width,
    )


def _nearest(spectrum: _Spectrum) -> SolverWork:
    """After a first subspace each step filters the positive pairs and a few more, and works on
    panels of those and of all that are kept."""
    n, rank = spectrum.n, spectrum.exact_rank()
    kept = kept_pairs(rank, n)
    filtered = min(n, rank + SPARE_PAIRS)
    block = min(kept, max(filtered, math.ceil(kept / 2)))
    foretold = 104.0 - 20.0 * spectrum.decades + 25.0 * math.log10(n / 4000)
    products = round(min(250.0, max(36.0, foretold)))
    refining = products - DENSITY_DEPTH - KRYLOV_DEPTH - PROBE_DEPTH - 1
    columns = min(DENSITY_BLOCK, n) * DENSITY_DEPTH + KRYLOV_DEPTH * block
    columns += refining * filtered + PROBE_DEPTH * PROBE_BLOCK + rank
    wide = kept + filtered
    cubes = float(min(KRYLOV_DEPTH * block, n)) ** 3
    cubes += products / FILTER_PRODUCTS * (float(wide) ** 3 + 1.5 * float(kept) ** 3)
    return SolverWork(
        rank=rank,
        products=products,
        columns=columns,
        computed_products=0,
        computed_columns=0,
        factor_columns=0,
        steps=550 + 6 * products,
        panel_bytes=10 * FLOAT32 * n * products * wide,
        panel_flops=round(1.7 * 2.0 * n * products * wide**2),
        driver_flops=round(EIGENDECOMPOSITION_FLOPS * cubes),
    )


def _aap(spectrum: _Spectrum) -> SolverWork:
    """Two box steps of two products each with what the box changes, then an exact projection of
    the factor, whose products are steps on panels."""
    n = spectrum.n
    limit = min(n, math.ceil(max(2.0 * math.sqrt(2.0 * n), 1.05 * spectrum.exact_rank())))
    width = min(n, math.ceil(1.2 * limit) + 8)
    refining = 12
    products = DENSITY_DEPTH + KRYLOV_DEPTH + refining
    columns = DENSITY_BLOCK * DENSITY_DEPTH
    columns += (KRYLOV_DEPTH // 3 + refining) * width
    return _worked(
        spectrum,
        rank=limit,
        products=products,
        columns=columns,
        computed_products=4,
        computed_columns=4 * limit,
        factor_columns=4 * limit,
        steps=1190,
        passes=50,
        largest=KRYLOV_DEPTH // 3 * width,
    )


def _auto(spectrum: _Spectrum) -> SolverWork:
    """Comparing risks on a subspace of the exact projection's width, then ``shrink``."""
    n = spectrum.n
    width = min(n, math.ceil(1.3 * spectrum.exact_rank()) + 12)
    products = DENSITY_DEPTH + KRYLOV_DEPTH + 2 * REFINEMENT_PRODUCTS
    comparing = _worked(
        spectrum,
        rank=0,
        products=products,
        columns=spectrum.columns(products, width),
        steps=400,
        passes=25,
        largest=KRYLOV_DEPTH * width,
    )
    chosen = _shrink(spectrum)
    names = SolverWork.__dataclass_fields__
    return SolverWork(**{name: getattr(comparing, name) + getattr(chosen, name) for name in names})


def _worked(
    spectrum: _Spectrum,
    *,
    rank: int,
    products: int,
    columns: int,
    steps: float,
    passes: float,
    largest: int,
    computed_products: int = 0,
    computed_columns: int = 0,
    factor_columns: int = 0,
) -> SolverWork:
    """Work on panels follows from that of products.

    ``passes`` are over a panel for each of its products, ``largest`` is the size of the
    eigenproblem of the first subspace.
    """
    n, all_columns = spectrum.n, columns + computed_columns
    mean = all_columns / max(1, products + computed_products)
    later = computed_products * (computed_columns / max(1, computed_products)) ** 3
    cubes = 2.0 * float(min(largest, n)) ** 3 + later + products * mean**3
    return SolverWork(
        rank=rank,
        products=products,
        columns=columns,
        computed_products=computed_products,
        computed_columns=computed_columns,
        factor_columns=factor_columns,
        steps=round(steps),
        panel_bytes=round(passes * FLOAT32 * n * all_columns),
        panel_flops=round(12.0 * 2.0 * n * all_columns * mean),
        driver_flops=round(EIGENDECOMPOSITION_FLOPS * cubes),
    )


_METHODS = {"aap": _aap, "auto": _auto, "nearest": _nearest, "shrink": _shrink}
