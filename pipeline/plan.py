"""What a release will do, counted before it does it: pure, sizes in and counts out.

Everything that runs is planned here first and refused here if it can't fit. Memory and disk figures
are upper bounds that the running stages are held to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.blocks import Triangle
from pipeline.errors import ConfigurationError
from scoreshield.forecast import GramForecast, forecast_gram
from scoreshield.mechanism import Mechanism
from scoreshield.noise import TILE
from scoreshield.projection import METHODS

MIB = 2**20
WORKER_BASELINE = 120 * MIB
"""Resident memory of a worker process that has done a task and holds nothing (measured)."""
USABLE_SHARE = 0.8
"""Share of a worker's memory limit that may be planned; the nanny ends a worker at 0.95 of it."""
MOST_TASKS = 10_000
"""Tasks a stage may have; the scheduler slows down far above it."""

_FLOAT32, _FLOAT64 = 4, 8
# Products of one tile in float64 and a few rows of noise (measured).
_TILE_SCRATCH = TILE * TILE * _FLOAT64 + 4 * MIB
# A receipt, a checksum and the rest of the last disk block, for each task.
_DISK_PER_TASK = 4096 + 64
# Array metadata, run record and log, or manifest and its copy with 500 iterations of history.
_DISK_PER_STAGE = 512 * 1024


@dataclass(frozen=True)
class StagePlan:
    """One stage: how many tasks, what each worker holds at most, what ends on disk."""

    name: Literal["perturb", "project", "publish"]
    tasks: int
    peak_worker_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class ReleasePlan:
    """A whole Gram release."""

    mechanism: Mechanism
    forecast: GramForecast
    triangle: Triangle
    method: str
    stages: tuple[StagePlan, ...]

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


def plan_release(
    mechanism: Mechanism,
    method: str,
    arrays: tuple[str, ...],
    block_side: int | Literal["auto"],
    threads_per_worker: int,
) -> ReleasePlan:
    """Count blocks, tasks, bytes and memory of a Gram release.

    Raises
    ------
    ConfigurationError
        The requested block side makes more tasks than a scheduler carries well.
    """
    n = mechanism.n
    side = automatic_block_side(n) if block_side == "auto" else block_side
    triangle = Triangle(n, side)
    if triangle.count > MOST_TASKS:
        raise ConfigurationError(
            f"block_side: {side} cuts {n} records into {triangle.count} blocks, more than "
            f"{MOST_TASKS}; use at least {automatic_block_side(n)} or 'auto'"
        )
    stages = [_perturb(mechanism, triangle, threads_per_worker)]
    if method != "none":
        stages.append(_project(triangle, method))
    stages.append(_publish(triangle, method, arrays, threads_per_worker))
    return ReleasePlan(mechanism, forecast_gram(mechanism), triangle, method, tuple(stages))


def automatic_block_side(n: int) -> int:
    """Smallest multiple of the noise tile that keeps the triangle within the task limit.

    Small galleries get blocks of one tile, so that several workers have something to do; from
    8192 records on a block is two tiles wide, which halves the reading of row panels.
    """
    side = TILE if n <= 8 * TILE else 2 * TILE
    while Triangle(n, side).count > MOST_TASKS:
        side += TILE
    return side


def check_fits(plan: ReleasePlan, memory_limit: int, free_disk: int) -> None:
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
                f"a smaller block_side than {plan.triangle.side} or fewer threads_per_worker"
                if stage.name != "project"
                else "a projection that needs less, or a machine with more"
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
            f"{show_bytes(free_disk)} are free; make room, or leave 'gram' out of arrays. "
            "Nothing was spent."
        )


def show_bytes(count: int) -> str:
    """A byte count for people, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _perturb(mechanism: Mechanism, triangle: Triangle, threads: int) -> StagePlan:
    """The largest of: checking a row panel, computing a tile, encoding the block."""
    side, d = min(triangle.side, triangle.n), mechanism.d
    panels = 2 * side * d * _FLOAT32
    checking = 2 * side * d * _FLOAT64 + side * d
    block = triangle.side**2 * _FLOAT32
    computing = block + _TILE_SCRATCH + 3 * min(side, TILE) * d * _FLOAT64
    # As an array, as bytes, and as bytes with their checksum.
    encoding = 3 * block
    task = panels + max(checking, computing, encoding)
    disk = triangle.count * (block + _DISK_PER_TASK) + _DISK_PER_STAGE
    return StagePlan("perturb", triangle.count, WORKER_BASELINE + threads * task, disk)


def _project(triangle: Triangle, method: str) -> StagePlan:
    memory = WORKER_BASELINE + METHODS[method].memory_bytes(triangle.n)
    return StagePlan("project", 1, memory, _factor_on_disk(triangle) + _DISK_PER_STAGE)


def _publish(triangle: Triangle, method: str, arrays: tuple[str, ...], threads: int) -> StagePlan:
    """The larger of: multiplying two panels in float64, encoding a block and its mirror."""
    n, side, per_side = triangle.n, min(triangle.side, triangle.n), triangle.per_side
    # The rank is known only once the noisy matrix is; it can't exceed n.
    rank = 0 if method == "none" else n
    panels = 2 * side * rank * _FLOAT32
    multiplying = 2 * side * rank * _FLOAT64 + side**2 * (_FLOAT64 + _FLOAT32)
    task = panels + max(multiplying, 4 * side**2 * _FLOAT32)
    tasks, disk = 0, _DISK_PER_STAGE
    if "factor" in arrays:
        tasks += per_side
        disk += _factor_on_disk(triangle)
    if "gram" in arrays:
        tasks += triangle.count
        disk += per_side**2 * (side**2 * _FLOAT32 + _DISK_PER_TASK)
    return StagePlan("publish", tasks, WORKER_BASELINE + threads * task, disk)


def _factor_on_disk(triangle: Triangle) -> int:
    """Factor and diagonal in whole panels, at the largest rank there can be."""
    rows = triangle.per_side * min(triangle.side, triangle.n)
    return rows * (triangle.n + 1) * _FLOAT32 + 2 * triangle.per_side * _DISK_PER_TASK
