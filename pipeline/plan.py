"""What a release will do, counted before it does it: pure, sizes in and counts out.

Everything that runs is planned here first and refused here if it can't fit. Memory and disk figures
are upper bounds that the running stages are held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.blocks import Triangle
from pipeline.errors import ConfigurationError
from scoreshield.forecast import GramForecast, forecast_gram
from scoreshield.mechanism import Mechanism
from scoreshield.noise import TILE
from scoreshield.projection import METHODS

MIB = 2**20
WORKER_BASELINE = 190 * MIB
"""Resident memory of an idle worker process with its libraries loaded (measured)."""
MOST_TASKS = 10_000
"""Tasks a stage may have; the scheduler slows down far above it."""

_FLOAT32, _FLOAT64 = 4, 8
# One tile of a block at a time: products, noise and their scratch in float64 (measured).
_TILE_SCRATCH = 4 * TILE * TILE * _FLOAT64
# A block is encoded by copy: the array, its bytes, and its bytes with the checksum.
_CODEC_COPIES = 3


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
        stages.append(_project(n, method))
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
        A stage's worker memory exceeds the limit, or the disk is too small.
    """
    for stage in plan.stages:
        if stage.peak_worker_bytes > memory_limit:
            remedy = (
                f"a smaller block_side than {plan.triangle.side} or fewer threads_per_worker"
                if stage.name != "project"
                else "a projection that needs less, or a machine with more"
            )
            raise ConfigurationError(
                f"stage {stage.name} needs {show_bytes(stage.peak_worker_bytes)} on one worker, "
                f"cluster.memory_limit is {show_bytes(memory_limit)}; raise the limit, or use "
                f"{remedy}. Nothing was spent."
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
    side, d = min(triangle.side, triangle.n), mechanism.d
    panels = 2 * side * d * _FLOAT32 + 2 * min(side, TILE) * d * _FLOAT64
    block = triangle.side**2 * _FLOAT32
    task = panels + (1 + _CODEC_COPIES) * block + _TILE_SCRATCH
    return StagePlan(
        "perturb", triangle.count, WORKER_BASELINE + threads * task, triangle.count * block
    )


def _project(n: int, method: str) -> StagePlan:
    factor = n * (n + 1) * _FLOAT32
    return StagePlan("project", 1, WORKER_BASELINE + METHODS[method].memory_bytes(n), factor)


def _publish(triangle: Triangle, method: str, arrays: tuple[str, ...], threads: int) -> StagePlan:
    n, side = triangle.n, min(triangle.side, triangle.n)
    block = side**2
    panels = 0 if method == "none" else 2 * side * n * (_FLOAT32 + _FLOAT64)
    task = panels + block * (2 * _FLOAT64 + (2 + _CODEC_COPIES) * _FLOAT32)
    gram = "gram" in arrays
    disk = (n * (n + 1) * _FLOAT32 if "factor" in arrays else 0) + (n * n * _FLOAT32 if gram else 0)
    return StagePlan(
        "publish", triangle.count if gram else 0, WORKER_BASELINE + threads * task, disk
    )
