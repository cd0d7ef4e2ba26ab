"""What a blockwise projection will do, counted before it does it: pure, sizes in and counts out.

How many products a solver needs, and how wide its panels get, follows from the noisy spectrum,
which nobody knows beforehand. Widths are upper estimates from the semicircle model, to which memory
and disk are planned; products and steps are what solvers typically take
(:mod:`pipeline.plan.solver_work`), from which passes and times are foretold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import cut_shares
from pipeline.plan.solver_work import SolverWork, foretell_work
from pipeline.project.panel_file import CHUNK_ROWS, row_ranges
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.encoding import Encoding

FLOAT32, FLOAT64 = 4, 8

LIVE_PANELS = 20
"""Panels on disk at the same time: six blocks of a Krylov subspace, their images, and what is made
of them."""

EXACT_RANK = 1.4
RANK_MARGIN = 1.3
"""The exact projection has rank 1.4·n·R^-0.6 with R = 2σ√n, within 25 % (measured)."""


@dataclass(frozen=True)
class BlockwisePlan:
    """A projection by products.

    Attributes
    ----------
    n : records
    width : most columns k of a panel
    work : what the solver typically does
    shares, ranges : tasks of a product, and of a step on panels
    bytes_a_product : of noisy blocks, read once a product where no worker holds them
    tasks : of all products and of the steps between them
    task_bytes : most memory of one task
    panel_bytes : of one panel on disk
    disk_bytes : panels, partial sums and checkpoint at their most
    """

    n: int
    width: int
    work: SolverWork
    shares: int
    ranges: int
    bytes_a_product: int
    tasks: int
    task_bytes: int
    panel_bytes: int
    disk_bytes: int

    @property
    def products(self) -> int:
        """Products with the noisy matrix, each of which passes over all its blocks; typically."""
        return self.work.products

    @property
    def all_products(self) -> int:
        """Products with the noisy matrix and with computed iterates; typically."""
        return self.work.products + self.work.computed_products

    @property
    def flops(self) -> int:
        """Operations of all products, and of the iterates that are computed; typically."""
        work = self.work
        columns = 2 * (work.columns + work.computed_columns) + work.factor_columns
        return self.n**2 * columns


def plan_blockwise(
    mechanism: Mechanism, triangle: Triangle, encoding: Encoding, method: str, threads: int
) -> BlockwisePlan:
    """Count a blockwise projection on that many threads of all workers together."""
    n, side = triangle.n, min(triangle.side, triangle.n)
    width = panel_width(mechanism, method)
    shares = cut_shares(triangle.per_side, threads)
    ranges = row_ranges(n, threads).count
    blocks_a_span = max(len(share.rows) for share in shares)
    work = foretell_work(mechanism, method)
    products = work.products + work.computed_products
    panel = n * width * FLOAT32
    spans = math.isqrt(2 * len(shares))
    return BlockwisePlan(
        n=n,
        width=width,
        work=work,
        shares=len(shares),
        ranges=ranges,
        bytes_a_product=triangle.count * triangle.side**2 * encoding.bytes,
        tasks=products * len(shares) + (products + work.steps) * ranges,
        task_bytes=max(
            _share_bytes(min(blocks_a_span * side, n), side, width), _step_bytes(n, width)
        ),
        panel_bytes=panel,
        disk_bytes=(LIVE_PANELS + spans) * panel,
    )


def panel_width(mechanism: Mechanism, method: str) -> int:
    """Upper estimate of the columns of a panel."""
    n, d = mechanism.n, mechanism.d
    radius = 2.0 * mechanism.sigma * math.sqrt(n)
    rank = min(float(n), RANK_MARGIN * EXACT_RANK * n * math.pow(max(radius, 1.0), -0.6) + d)
    # Pairs below the cut are kept as well, and a subspace that fell short grows by half.
    exact = 1.5 * (1.3 * max(rank, 1.5 * math.sqrt(n)) + 12)
    spikes = exact if d > n / 8 else 1.5 * (1.3 * d + 12)
    widths = {
        "aap": 2.0 * (1.2 * max(2.0 * math.sqrt(2.0 * n), 1.2 * rank) + 8),
        "auto": max(exact, spikes),
        "nearest": exact,
        "shrink": spikes,
    }
    return min(n, math.ceil(widths[method]))


def _share_bytes(rows: int, side: int, width: int) -> int:
    """Two panels and two sums over a span, one block as stored, as computed and relaxed, one
    product."""
    return 4 * rows * width * FLOAT32 + 4 * side**2 * FLOAT32 + side * width * FLOAT32


def _step_bytes(n: int, width: int) -> int:
    """Chunks of both sides of a reduction, single and double; coefficients and their result."""
    chunk = min(n, CHUNK_ROWS) * width
    return chunk * (2 * FLOAT64 + 6 * FLOAT32) + width**2 * (2 * FLOAT64 + 2 * FLOAT32)
