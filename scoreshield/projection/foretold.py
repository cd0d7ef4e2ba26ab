"""What a blockwise projection typically does, foretold: pure, sizes in and counts out.

How many eigenpairs a method keeps follows from a model of the noisy spectrum: the semicircle of the
noise, |λ| ≤ R = 2σ√n, and k equal spikes above it. How many products and steps it then takes
follows from how far those spikes stand out: √n/σ components at most can rise above the noise, and
its decimal logarithm is the measure used here, 2.5 where spikes stand out and below 0 where noise
alone is left. The constants of the methods are fitted to counts of real solves
(``benchmarks/solver_work.py``, n = 1000 to 8000, σ = 0.1 to 100, tolerance 1e-4; ``nearest`` up to
n = 100,000) and hold for other data within a factor of 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scoreshield.projection.blockwise.subspace import DENSITY_BLOCK, DENSITY_DEPTH

SHARE_THAT_STANDS_OUT = 0.5
"""Spectra fall: of the components that could stand out if all were equal, about half do."""

EIGENDECOMPOSITION_FLOPS = 9
"""A symmetric eigendecomposition with all vectors takes about 9 k³ operations."""

EXACT_RANK = 1.4
RANK_MARGIN = 1.3
"""The exact projection has rank 1.4·n·R^-0.6 with R = 2σ√n, within 25 % (measured)."""


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
    panel_numbers : numbers that those read and write
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
    panel_numbers: int
    panel_flops: int
    driver_flops: int

    @property
    def mean_columns(self) -> int:
        """Columns of a typical product."""
        products = self.products + self.computed_products
        return max(1, round((self.columns + self.computed_columns) / max(1, products)))

    def __add__(self, other: SolverWork) -> SolverWork:
        """One after the other."""
        names = [field.name for field in fields(self)]
        return SolverWork(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class NoisySpectrum:
    """The model: n, R and k equal spikes.

    Attributes
    ----------
    n, d : records, and features of each
    sigma : standard deviation σ of the noise
    """

    n: int
    d: int
    sigma: float

    @property
    def radius(self) -> float:
        """R."""
        return 2.0 * self.sigma * math.sqrt(self.n)

    @property
    def spikes(self) -> int:
        """k."""
        return int(min(float(self.d), float(self.n), self._standing_out))

    @property
    def decades(self) -> float:
        """Decimal logarithm of how many components could stand out."""
        return math.log10(math.sqrt(self.n) / self.sigma)

    @property
    def borders_on_noise(self) -> bool:
        """Whether noise, not the number of features, limits the spikes: some then hardly stand out,
        and finding them takes more than the one filter that finds the rest, or that there are none.
        """
        return self._standing_out < min(self.d, self.n)

    @property
    def _standing_out(self) -> float:
        return SHARE_THAT_STANDS_OUT * (math.sqrt(self.n) / self.sigma)

    @property
    def largest_rank(self) -> float:
        """Upper estimate of the rank of the exact projection."""
        of_noise = RANK_MARGIN * EXACT_RANK * self.n * math.pow(max(self.radius, 1.0), -0.6)
        return min(float(self.n), of_noise + self.d)

    @property
    def exact_width(self) -> float:
        """Columns that the exact projection keeps at most."""
        # Pairs below the cut are kept as well, and a subspace that fell short grows by half.
        return 1.5 * (1.3 * max(self.largest_rank, 1.5 * math.sqrt(self.n)) + 12)

    @property
    def spike_width(self) -> float:
        """Columns that the search for the spikes keeps at most; many of them ask for the exact
        projection."""
        return self.exact_width if self.d > self.n / 8 else 1.5 * (1.3 * self.d + 12)

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


def work_on_panels(
    spectrum: NoisySpectrum,
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
    """The work of a solver whose steps on panels follow from its products.

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
        panel_numbers=round(passes * n * all_columns),
        panel_flops=round(12.0 * 2.0 * n * all_columns * mean),
        driver_flops=round(EIGENDECOMPOSITION_FLOPS * cubes),
    )
