"""How long a planned release will take at measured rates: pure, a plan and rates in, seconds out.

Every stage is a sum of amounts that the plan counts, each divided by a rate that a calibration has
measured. Rates are of one thread while all threads of the calibrating cluster were busy, so that
what threads share, such as a memory bus or a disk, is in them as far as that cluster shared it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import GramPlan, ReleasePlan
from pipeline.plan.memory import FLOAT32
from pipeline.plan.scores import ScoresPlan
from pipeline.plan.shares import Places, cut_shares
from pipeline.plan.solver_work import EIGENDECOMPOSITION_FLOPS

DENSE_EIGENDECOMPOSITIONS = {"aap": 90, "auto": 8, "nearest": 7, "shrink": 1}
"""Typical numbers for a projection in one task (benchmarks/README.md)."""

NUMBERS_A_MESSAGE = 6
"""Mean bytes of a coefficient on its way between driver and worker: float32 out, float64 back."""


@dataclass(frozen=True)
class Rates:
    """What a calibration measures. All but the last group are of one thread of a worker.

    Attributes
    ----------
    noise_samples : noisy values a second, without their inner products
    exact_flops : operations a second of exact inner products
    gallery_bytes : bytes of records read and checked a second
    block_write_bytes : bytes of noisy blocks a second, with digest and receipt
    block_read_bytes : bytes of noisy blocks a second, from storage where it could be emptied of
        what memory holds of it
    block_values : stored values a second that a product takes up, without its operations
    computed_values : values a second of an iterate of ``aap``, without their operations
    product_flops : operations a second of a product, at the planned width of a panel
    panel_bytes : bytes of panels read or written a second
    panel_flops : operations a second of a combination or reduction of panels
    published_values : values a second of a published matrix, without their inner products
    published_flops : operations a second of published inner products
    eigen_flops : operations a second of an eigendecomposition with the threads of one projection
    driver_flops : the same of a small one, on the driver
    driver_bytes : published bytes a second that the driver reads, digests and makes durable
    message_bytes : bytes a second between driver and workers
    task_seconds : of a task that does nothing, one after another through the window
    round_seconds : of a round of such tasks, besides ``round_task_seconds`` for each of them
    round_task_seconds : see ``round_seconds``
    start_seconds : until the cluster was there
    """

    noise_samples: float
    exact_flops: float
    gallery_bytes: float
    block_write_bytes: float
    block_read_bytes: float
    block_values: float
    computed_values: float
    product_flops: float
    panel_bytes: float
    panel_flops: float
    published_values: float
    published_flops: float
    eigen_flops: float
    driver_flops: float
    driver_bytes: float
    message_bytes: float
    task_seconds: float
    round_seconds: float
    round_task_seconds: float
    start_seconds: float


@dataclass(frozen=True)
class Machines:
    """What a forecast needs to know of a cluster.

    Attributes
    ----------
    workers, threads_per_worker : processes, and threads of each
    cache_bytes : noisy blocks that one worker may hold
    """

    workers: int
    threads_per_worker: int
    cache_bytes: int

    @property
    def threads(self) -> int:
        """Tasks at the same time."""
        return self.workers * self.threads_per_worker


@dataclass(frozen=True)
class StageTime:
    """Seconds that a stage will take, and the bytes of noisy blocks that it reads from storage."""

    name: str
    seconds: float
    bytes_read: int = 0


def forecast_time(plan: ReleasePlan, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
    """Seconds of every stage, in order: start, perturb, project where there is one, publish."""
    stages = [StageTime("start", rates.start_seconds), _perturb(plan, rates, machines)]
    if isinstance(plan, GramPlan):
        if plan.blockwise is not None:
            stages.append(_project(plan.triangle, plan.blockwise, rates, machines))
        elif plan.projects:
            stages.append(_project_in_one_task(plan, rates))
        stages.append(_publish(plan, rates, machines))
    elif isinstance(plan, ScoresPlan):
        stages.append(_publish_scores(plan, rates, machines))
    return tuple(stages)


def bytes_read_from_storage(blockwise: BlockwisePlan, machines: Machines) -> int:
    """Bytes of noisy blocks that all products read: once what workers hold, the rest each time."""
    held = min(machines.workers * machines.cache_bytes, blockwise.bytes_a_product)
    return held + blockwise.products * (blockwise.bytes_a_product - held)


def _perturb(plan: ReleasePlan, rates: Rates, machines: Machines) -> StageTime:
    """Noise on every value once; inner products, reading and writing by whole blocks."""
    count, (rows, columns), d = plan.geometry.count, plan.geometry.shape, plan.mechanism.d
    n = plan.mechanism.n
    samples = n * (n - 1) // 2 if isinstance(plan, GramPlan) else (plan.mechanism.m or 1) * n
    panels = (rows + columns) if isinstance(plan, GramPlan) else columns
    work = (
        samples / rates.noise_samples
        + 2 * count * rows * columns * d / rates.exact_flops
        + count * panels * d * FLOAT32 / rates.gallery_bytes
        + count * plan.block_bytes / rates.block_write_bytes
    )
    # The driver digests the gallery before and after, and what it is bound to.
    digests = 2 * n * d * FLOAT32 / rates.gallery_bytes
    return StageTime("perturb", digests + _in_waves(work, count, rates, machines))


def _project(
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
    partial_bytes = 3 * (spans + 1) * triangle.n * columns * FLOAT32
    stepping = (partial_bytes + work.panel_bytes) / rates.panel_bytes
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


def _project_in_one_task(plan: GramPlan, rates: Rates) -> StageTime:
    n, count = plan.triangle.n, DENSE_EIGENDECOMPOSITIONS[plan.method]
    read = plan.triangle.count * plan.block_bytes
    seconds = read / rates.block_read_bytes
    seconds += count * EIGENDECOMPOSITION_FLOPS * n**3 / rates.eigen_flops
    return StageTime("project", seconds, read)


def _publish(plan: GramPlan, rates: Rates, machines: Machines) -> StageTime:
    """Panels copied, inner products of the dense matrix, and the driver's last look at it all."""
    triangle = plan.triangle
    rank = 0 if plan.method == "none" else triangle.n
    rank = rank if plan.blockwise is None else plan.blockwise.work.rank
    published, work = 0, 0.0
    if "factor" in plan.arrays:
        published += triangle.n * (rank + 1) * FLOAT32
        work += 2 * published / rates.panel_bytes
    if "gram" in plan.arrays:
        values = (triangle.per_side * triangle.side) ** 2
        published += values * FLOAT32
        work += values / rates.published_values + values * rank / rates.published_flops
    tasks = plan.stages[-1].tasks
    finishing = published / rates.driver_bytes
    return StageTime("publish", finishing + _in_waves(work, tasks, rates, machines))


def _publish_scores(plan: ScoresPlan, rates: Rates, machines: Machines) -> StageTime:
    rectangle = plan.rectangle
    values = rectangle.m * rectangle.n
    work = values * FLOAT32 / rates.block_read_bytes + values / rates.published_values
    finishing = values * FLOAT32 / rates.driver_bytes
    return StageTime("publish", finishing + _in_waves(work, rectangle.count, rates, machines))


def _in_waves(work: float, tasks: int, rates: Rates, machines: Machines) -> float:
    """Equal tasks on all threads: the last wave may be partial, and handing out takes time."""
    if tasks == 0:
        return 0.0
    waves = -(-tasks // machines.threads)
    return max(work * waves / tasks, tasks * rates.task_seconds) + rates.task_seconds


def uneven(per_side: int, threads: int) -> float:
    """Work of the thread that has most of a product, relative to the mean."""
    shares = cut_shares(per_side, threads)
    places = Places(shares).among({str(thread): 1 for thread in range(threads)})
    load = dict.fromkeys(places.values(), 0)
    for share in shares:
        load[places[share.index]] += share.work
    return max(load.values()) * threads / sum(share.work for share in shares)
