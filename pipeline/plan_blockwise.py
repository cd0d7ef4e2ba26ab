"""What a blockwise projection will do, counted before it does it: pure, sizes in and counts out.

How many products a solver needs, and how wide its panels get, follows from the noisy spectrum,
which nobody knows beforehand. Widths are upper estimates from the semicircle model, to which memory
and disk are planned; numbers of products are what the solvers typically took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.geometry import Triangle
from pipeline.panel_file import CHUNK_ROWS, row_ranges
from pipeline.shares import cut_shares
from scoreshield.encoding import Encoding
from scoreshield.mechanism import Mechanism

FLOAT32, FLOAT64 = 4, 8

TYPICAL_PRODUCTS = {"aap": 90, "auto": 100, "nearest": 80, "shrink": 45}
"""Products of a whole solve at tolerance 1e-4: estimates from runs at n = 600 to 10,000."""

STEPS_PER_PRODUCT = 20
"""Operations on panels for each product: a rough average of runs at n = 600."""

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
    width : most columns k of a panel
    products : products G × (n × k), typically
    bytes_a_product : of noisy blocks, read once a product where no worker holds them
    flops_a_product : floating-point operations
    tasks : of all products and of the steps between them
    task_bytes : most memory of one task
    panel_bytes : of one panel on disk
    disk_bytes : panels, partial sums and checkpoint at their most
    """

    width: int
    products: int
    bytes_a_product: int
    flops_a_product: int
    tasks: int
    task_bytes: int
    panel_bytes: int
    disk_bytes: int


def plan_blockwise(
    mechanism: Mechanism, triangle: Triangle, encoding: Encoding, method: str, threads: int
) -> BlockwisePlan:
    """Count a blockwise projection on that many threads of all workers together."""
    n, side = triangle.n, min(triangle.side, triangle.n)
    width = panel_width(mechanism, method)
    shares = cut_shares(triangle.per_side, threads)
    ranges = row_ranges(n, threads).count
    blocks_a_span = max(len(share.rows) for share in shares)
    products = TYPICAL_PRODUCTS[method]
    panel = n * width * FLOAT32
    spans = math.isqrt(2 * len(shares))
    return BlockwisePlan(
        width=width,
        products=products,
        bytes_a_product=triangle.count * triangle.side**2 * encoding.bytes,
        flops_a_product=2 * n**2 * width,
        tasks=products * (len(shares) + (1 + STEPS_PER_PRODUCT) * ranges),
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
