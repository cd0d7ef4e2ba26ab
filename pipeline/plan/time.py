"""How long a planned release will take at measured rates: pure, a plan and rates in, seconds out.

Every stage is a sum of amounts that the plan counts, each divided by a rate that a calibration has
measured.
"""

from __future__ import annotations

import math

from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import FLOAT32_BYTES
from pipeline.plan.rates import Machines, Rates, StageTime
from pipeline.plan.shares import ShareOwners, cut_shares
from scoreshield.projection import METHODS
from scoreshield.projection.foretold import EIGENDECOMPOSITION_FLOPS

NUMBERS_A_MESSAGE = 6
"""Mean bytes of a coefficient on its way between driver and worker: float32 out, float64 back."""


def bytes_read_from_storage(blockwise: BlockwisePlan, machines: Machines) -> int:
    """Bytes of noisy blocks that all products read: once what workers hold, the rest each time."""
    held = min(machines.workers * machines.cache_bytes, blockwise.bytes_a_product)
    return held + blockwise.products * (blockwise.bytes_a_product - held)


def time_blockwise(
    triangle: Triangle, blockwise: BlockwisePlan, rates: Rates, machines: Machines
) -> StageTime:
    """Products, steps between them, and the small problems that the driver solves alone."""
    work, threads = blockwise.work, machines.threads
    values = triangle.count * triangle.side**2
    read = bytes_read_from_storage(blockwise, machines)
    multiplying = (
        work.products * values / rates.block_values
        + work.computed_products * values / rates.computed_values
        + 2 * triangle.n**2 * (work.columns + work.computed_columns) / rates.product_flops
        # A block of the iterate is two panels multiplied; its mirror is the same.
        + triangle.n**2 * work.factor_columns / rates.product_flops
        + read / rates.block_read_bytes
    ) * uneven(triangle.per_side, threads)
    # Each share reads and writes two of the spans, whose sums are read again and written.
    spans = math.isqrt(2 * blockwise.shares)
    columns = work.columns + work.computed_columns
    partial_bytes = 3 * (spans + 1) * triangle.n * columns * FLOAT32_BYTES
    stepping = (partial_bytes + blockwise.step_bytes) / rates.panel_bytes
    stepping += work.panel_flops / rates.panel_flops
    ranges = blockwise.ranges
    products = work.products + work.computed_products
    rounds = (2 * products + work.steps) * rates.round_seconds
    tasks = products * blockwise.shares + (products + work.steps) * ranges
    messages = NUMBERS_A_MESSAGE * ranges * work.panel_flops / (2 * triangle.n)
    seconds = (
        multiplying / threads
        + stepping / min(threads, ranges)
        + rounds
        + tasks * rates.round_task_seconds
        + messages / rates.message_bytes
        + work.driver_flops / rates.driver_flops
    )
    return StageTime("project", seconds, read)


def time_in_one_task(n: int, method: str, read: int, rates: Rates) -> StageTime:
    """Eigendecompositions of the whole matrix (n, n), of which ``read`` bytes are read once."""
    seconds = read / rates.block_read_bytes
    count = METHODS[method].eigendecompositions
    seconds += count * EIGENDECOMPOSITION_FLOPS * n**3 / rates.eigen_flops
    return StageTime("project", seconds, read)


def uneven(per_side: int, threads: int) -> float:
    """Work of the thread that has most of a product, relative to the mean."""
    shares = cut_shares(per_side, threads)
    owners = ShareOwners(shares).among({str(thread): 1 for thread in range(threads)})
    load = dict.fromkeys(owners.values(), 0)
    for share in shares:
        load[owners[share.index]] += share.work
    return max(load.values()) * threads / sum(share.work for share in shares)
