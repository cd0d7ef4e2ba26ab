"""What a release will do, counted before it does it: pure, sizes in and counts out.

Everything that runs is planned here first and refused here if it can't fit. Memory and disk figures
are upper bounds that the running stages are held to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import ConfigurationError
from pipeline.plan.blockwise import BlockwisePlan, plan_blockwise
from pipeline.plan.geometry import Geometry, Triangle
from pipeline.plan.memory import FLOAT32, FLOAT64, DensePanels, PanelMemory
from pipeline.quantities import show_bytes
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.encoding import Encoding, Precision, choose_encoding
from scoreshield.noise.sampler import TILE
from scoreshield.projection import METHODS
from scoreshield.projection.choose import LARGEST_DENSE, Form
from scoreshield.utility.forecast import GramForecast, forecast_gram

MIB = 2**20
WORKER_BASELINE = 120 * MIB
"""Resident memory of a worker process that has done a task and holds nothing (measured)."""
USABLE_SHARE = 0.8
"""Share of a worker's memory limit that may be planned; the nanny ends a worker at 0.95 of it."""
MOST_TASKS = 10_000
"""Tasks a stage may have; the scheduler slows down far above it."""

TILE_SCRATCH = TILE * TILE * FLOAT64 + 4 * MIB
"""Products of one tile in float64 and a few rows of noise (measured)."""
DISK_PER_TASK = 4096 + 64
"""A receipt, a checksum and the rest of the last disk block, for each task."""
DISK_PER_STAGE = 512 * 1024
"""Array metadata, run record and log, or manifest and its copy with 500 iterations of history."""


@dataclass(frozen=True)
class StagePlan:
    """One stage: how many tasks, what each worker holds at most, what ends on disk."""

    name: Literal["perturb", "project", "publish"]
    tasks: int
    peak_worker_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class ReleasePlan(ABC):
    """A whole release, of either regime."""

    mechanism: Mechanism
    method: str
    """Of the post-processing."""
    stages: tuple[StagePlan, ...]
    encoding: Encoding
    """How the noisy values are stored."""

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """How the noisy matrix is cut into blocks."""

    @property
    @abstractmethod
    def less(self) -> str:
        """How to release less where a disk is too small, in words."""

    @property
    def projects(self) -> bool:
        """Whether there is a projection between the noisy blocks and the release."""
        return any(stage.name == "project" for stage in self.stages)

    @property
    def block_bytes(self) -> int:
        """Bytes of one stored noisy block."""
        rows, columns = self.geometry.shape
        return rows * columns * self.encoding.bytes

    @property
    def peak_worker_bytes(self) -> int:
        """The most that one worker holds in any stage."""
        return max(stage.peak_worker_bytes for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Run directory and release together."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def tasks(self) -> int:
        """Tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)


@dataclass(frozen=True)
class GramPlan(ReleasePlan):
    """A whole Gram release."""

    forecast: GramForecast
    triangle: Triangle
    arrays: tuple[str, ...]
    """What is published: ``"factor"``, ``"gram"``, or both."""
    blockwise: BlockwisePlan | None = None
    """The projection, where it runs on all workers; None for one task, or none."""

    @property
    def geometry(self) -> Triangle:
        """The upper triangle."""
        return self.triangle

    @property
    def less(self) -> str:
        """The dense matrix is most of a release."""
        return "leave 'gram' out of arrays"


def plan_release(
    mechanism: Mechanism,
    method: str,
    arrays: tuple[str, ...],
    block_side: int | Literal["auto"],
    threads_per_worker: int,
    workers: int = 1,
    form: Form = "auto",
    precision: Precision = "auto",
    panels: PanelMemory | None = None,
) -> GramPlan:
    """Count blocks, tasks, bytes and memory of a Gram release.

    Parameters
    ----------
    panels : what panels of the gallery cost; by default those of embeddings of d features.

    Raises
    ------
    ConfigurationError
        The requested block side makes more tasks than a scheduler carries well.
    ParameterError
        The requested precision is too coarse for the noise.
    """
    n = mechanism.n
    # Without a projection the stored values are what is published, and nothing is rounded unasked.
    as_computed = method == "none" and precision == "auto"
    encoding = choose_encoding(mechanism.sigma, "float32" if as_computed else precision)
    side = automatic_block_side(n) if block_side == "auto" else block_side
    triangle = Triangle(n, side)
    if triangle.count > MOST_TASKS:
        raise ConfigurationError(
            f"block_side: {side} cuts {n} records into {triangle.count} blocks, more than "
            f"{MOST_TASKS}; use at least {automatic_block_side(n)} or 'auto'"
        )
    blockwise = None
    if method != "none" and (form == "blockwise" or (form == "auto" and n > LARGEST_DENSE)):
        threads = workers * threads_per_worker
        blockwise = plan_blockwise(mechanism, triangle, encoding, method, threads)
    stages = [_perturb(panels or DensePanels(mechanism.d), triangle, encoding, threads_per_worker)]
    if blockwise is not None:
        stages.append(_project_blockwise(triangle, blockwise, threads_per_worker))
    elif method != "none":
        stages.append(_project(triangle, method))
    # The rank is known only once the noisy matrix is; in one task it can be anything up to n.
    rank = 0 if method == "none" else n if blockwise is None else blockwise.width
    stages.append(_publish(triangle, rank, arrays, threads_per_worker))
    forecast = forecast_gram(mechanism)
    return GramPlan(
        mechanism, method, tuple(stages), encoding, forecast, triangle, arrays, blockwise
    )


def automatic_block_side(n: int) -> int:
    """Smallest multiple of the noise tile that keeps the triangle within the task limit.

    Small galleries get blocks of one tile, so that several workers have something to do; from
    8192 records on a block is two tiles wide, which halves the reading of row panels.
    """
    side = TILE if n <= 8 * TILE else 2 * TILE
    while Triangle(n, side).count > MOST_TASKS:
        side += TILE
    return side


def check_fits(plan: ReleasePlan, memory_limit: int, free_disk: float) -> None:
    """Refuse a plan that does not fit, with its numbers, before anything is spent.

    Raises
    ------
    ConfigurationError
        A stage's worker memory exceeds its share of the limit, or the disk is too small.
    """
    for stage in plan.stages:
        if stage.peak_worker_bytes > USABLE_SHARE * memory_limit:
            needed = math.ceil(stage.peak_worker_bytes / USABLE_SHARE)
            remedy = (
                "form: blockwise under projection, which runs on all workers"
                if stage.name == "project" and stage.tasks == 1
                else f"a smaller block_side than {plan.geometry.shape[1]} or fewer "
                "threads_per_worker"
            )
            raise ConfigurationError(
                f"stage {stage.name} needs {show_bytes(stage.peak_worker_bytes)} on one worker, "
                f"cluster.memory_limit is {show_bytes(memory_limit)}, of which {USABLE_SHARE:.0%} "
                f"may be planned; raise the limit to {show_bytes(needed)}, or use {remedy}. "
                "Nothing was spent."
            )
    if plan.disk_bytes > free_disk:
        raise ConfigurationError(
            f"the run and its release need {show_bytes(plan.disk_bytes)} of disk, "
            f"{show_bytes(int(free_disk))} are free; make room, or release less ({plan.less}). "
            "Nothing was spent."
        )


def _perturb(
    panels: PanelMemory, triangle: Triangle, encoding: Encoding, threads: int
) -> StagePlan:
    """The largest of: reading a row panel, computing a tile, encoding the block."""
    side = min(triangle.side, triangle.n)
    block = triangle.side**2 * FLOAT32
    computing = block + TILE_SCRATCH + panels.computing(side)
    stored = triangle.side**2 * encoding.bytes
    # As computed; as bytes, and as bytes with their checksum; as codes, and padded codes. The
    # allocator keeps what the tiles needed.
    storing = block + (2 if encoding.step is None else 4) * stored + TILE_SCRATCH
    task = 2 * panels.held(side) + max(panels.reading(side), computing, storing)
    disk = triangle.count * (stored + DISK_PER_TASK) + DISK_PER_STAGE
    return StagePlan("perturb", triangle.count, WORKER_BASELINE + threads * task, disk)


def _project(triangle: Triangle, method: str) -> StagePlan:
    memory = WORKER_BASELINE + METHODS[method].memory_bytes(triangle.n)
    disk = _factor_on_disk(triangle, triangle.n) + DISK_PER_STAGE
    return StagePlan("project", 1, memory, disk)


def _project_blockwise(triangle: Triangle, blockwise: BlockwisePlan, threads: int) -> StagePlan:
    """Without the blocks that workers hold: those get what is left (:func:`cache_bytes`)."""
    memory = WORKER_BASELINE + threads * blockwise.task_bytes
    disk = blockwise.disk_bytes + _factor_on_disk(triangle, blockwise.width) + DISK_PER_STAGE
    return StagePlan("project", blockwise.tasks, memory, disk)


def cache_bytes(plan: ReleasePlan, memory_limit: int) -> int:
    """Memory that a worker may fill with noisy blocks during the projection."""
    needed = next(stage.peak_worker_bytes for stage in plan.stages if stage.name == "project")
    return max(0, int(USABLE_SHARE * memory_limit) - needed)


def _publish(triangle: Triangle, rank: int, arrays: tuple[str, ...], threads: int) -> StagePlan:
    """The larger of: multiplying two panels in float64, encoding a block and its mirror."""
    side, per_side = min(triangle.side, triangle.n), triangle.per_side
    panels = 2 * side * rank * FLOAT32
    multiplying = 2 * side * rank * FLOAT64 + side**2 * (FLOAT64 + FLOAT32)
    task = panels + max(multiplying, 4 * side**2 * FLOAT32)
    tasks, disk = 0, DISK_PER_STAGE
    if "factor" in arrays:
        tasks += per_side
        disk += _factor_on_disk(triangle, rank)
    if "gram" in arrays:
        tasks += triangle.count
        disk += per_side**2 * (side**2 * FLOAT32 + DISK_PER_TASK)
    return StagePlan("publish", tasks, WORKER_BASELINE + threads * task, disk)


def _factor_on_disk(triangle: Triangle, rank: int) -> int:
    """Factor and diagonal in whole panels."""
    rows = triangle.per_side * min(triangle.side, triangle.n)
    return rows * (rank + 1) * FLOAT32 + 2 * triangle.per_side * DISK_PER_TASK
