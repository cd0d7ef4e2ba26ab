"""What a release will do, counted before it does it: pure, sizes in and counts out.

Everything that runs is planned here first and refused here if it can't fit. Memory and disk figures
are upper bounds that the running stages are held to. What every plan is; each regime's own is in
the file of its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import ConfigurationError
from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.geometry import Geometry
from pipeline.plan.memory import FLOAT32_BYTES, FLOAT64_BYTES
from pipeline.plan.rates import Machines, Rates, StageTime, in_waves
from pipeline.quantities import show_bytes
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.encoding import Encoding
from scoreshield.noise.sampler import TILE
from scoreshield.utility.forecast import Forecast

MIB = 2**20
WORKER_BASELINE = 120 * MIB
"""Resident memory of a worker process that has done a task and holds nothing (measured)."""
USABLE_SHARE = 0.8
"""Share of a worker's memory limit that may be planned; the nanny ends a worker at 0.95 of it."""
MOST_TASKS = 10_000
"""Tasks a stage may have; the scheduler slows down far above it."""

TILE_SCRATCH = TILE * TILE * FLOAT64_BYTES + 4 * MIB
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
    """A whole release; each regime has its own, and nothing else asks which regime it is."""

    mechanism: Mechanism
    method: str
    """Of the post-processing."""
    stages: tuple[StagePlan, ...]
    encoding: Encoding
    """How the noisy values are stored."""
    forecast: Forecast
    """What the release can carry."""
    blockwise: BlockwisePlan | None = field(default=None, kw_only=True)
    """The projection, where it runs on all workers; None for one task, or none."""

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """How the noisy matrix is cut into blocks."""

    @property
    @abstractmethod
    def less(self) -> str:
        """How to release less where a disk is too small, in words."""

    @property
    @abstractmethod
    def heading(self) -> str:
        """What is released, of what, in words."""

    @property
    def records(self) -> str:
        """How many records of how many features, in words."""
        return f"{self.mechanism.n} records of {self.mechanism.d} features"

    @property
    @abstractmethod
    def noise_samples(self) -> int:
        """Noisy values, each with a draw of its own."""

    @property
    @abstractmethod
    def panel_rows(self) -> int:
        """Records that the task of one noisy block reads."""

    @abstractmethod
    def time_after_perturb(self, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
        """Seconds of every stage after ``perturb``, in order."""

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


def cache_bytes(plan: ReleasePlan, memory_limit: int) -> int:
    """Memory that a worker may fill with noisy blocks during the projection."""
    needed = next(stage.peak_worker_bytes for stage in plan.stages if stage.name == "project")
    return max(0, int(USABLE_SHARE * memory_limit) - needed)


def forecast_time(plan: ReleasePlan, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
    """Seconds of every stage, in order: start, perturb, project where there is one, publish."""
    start = StageTime("start", rates.start_seconds)
    return start, _time_to_perturb(plan, rates, machines), *plan.time_after_perturb(rates, machines)


def _time_to_perturb(plan: ReleasePlan, rates: Rates, machines: Machines) -> StageTime:
    """Noise on every value once; inner products, reading and writing by whole blocks."""
    count, (rows, columns), d = plan.geometry.count, plan.geometry.shape, plan.mechanism.d
    work = (
        plan.noise_samples / rates.noise_samples
        + 2 * count * rows * columns * d / rates.exact_flops
        + count * plan.panel_rows * d * FLOAT32_BYTES / rates.gallery_bytes
        + count * plan.block_bytes / rates.block_write_bytes
    )
    # The driver digests the gallery before and after, and what it is bound to.
    digests = 2 * plan.mechanism.n * d * FLOAT32_BYTES / rates.gallery_bytes
    return StageTime("perturb", digests + in_waves(work, count, rates, machines))
