"""What a blockwise projection will do, counted before it does it: pure, sizes in and counts out.

How many products a solver needs, and how wide its panels get, follows from the noisy spectrum,
which nobody knows beforehand. Widths are upper estimates from the semicircle model, to which memory
and disk are planned; products and steps are what solvers typically take, from which passes and
times are foretold. Both are facts of the method (:mod:`scoreshield.projection.foretold`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import FLOAT32_BYTES, FLOAT64_BYTES
from pipeline.plan.shares import CHUNK_ROWS, cut_shares, row_ranges
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.encoding import Encoding
from scoreshield.projection.foretold import NoisySpectrum, SolverWork
from scoreshield.projection.methods.record import BlockwiseForm

LIVE_PANELS = 20
"""Panels on disk at the same time: six blocks of a Krylov subspace, their images, and what is made
of them."""


@dataclass(frozen=True)
class BlockwisePlan:
    """A projection by products.

    Attributes
    ----------
    n : records
    width : most columns k of a panel
    work : what the solver typically does
    takes_rank : whether the solver takes a given rank
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
    takes_rank: bool
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
    def step_bytes(self) -> int:
        """Bytes that steps on panels read and write; typically."""
        return self.work.panel_numbers * FLOAT32_BYTES

    @property
    def flops(self) -> int:
        """Operations of all products, and of the iterates that are computed; typically."""
        work = self.work
        columns = 2 * (work.columns + work.computed_columns) + work.factor_columns
        return self.n**2 * columns


def plan_blockwise(
    mechanism: Mechanism, triangle: Triangle, encoding: Encoding, form: BlockwiseForm, threads: int
) -> BlockwisePlan:
    """Count a blockwise projection on that many threads of all workers together."""
    n, side = triangle.n, min(triangle.side, triangle.n)
    spectrum = NoisySpectrum(n, mechanism.d, mechanism.sigma)
    width = min(n, math.ceil(form.width(spectrum)))
    shares = cut_shares(triangle.per_side, threads)
    ranges = row_ranges(n, threads).count
    blocks_a_span = max(len(share.rows) for share in shares)
    work = form.work(spectrum)
    products = work.products + work.computed_products
    panel = n * width * FLOAT32_BYTES
    spans = math.isqrt(2 * len(shares))
    return BlockwisePlan(
        n=n,
        width=width,
        work=work,
        takes_rank=form.takes_rank,
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


def _share_bytes(rows: int, side: int, width: int) -> int:
    """Two panels and two sums over a span, one block as stored, as computed and relaxed, one
    product."""
    return (
        4 * rows * width * FLOAT32_BYTES
        + 4 * side**2 * FLOAT32_BYTES
        + side * width * FLOAT32_BYTES
    )


def _step_bytes(n: int, width: int) -> int:
    """Chunks of both sides of a reduction, single and double; coefficients and their result."""
    chunk = min(n, CHUNK_ROWS) * width
    return chunk * (2 * FLOAT64_BYTES + 6 * FLOAT32_BYTES) + width**2 * (
        2 * FLOAT64_BYTES + 2 * FLOAT32_BYTES
    )
