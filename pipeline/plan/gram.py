"""What a Gram release will do, counted before it does it, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import ConfigurationError
from pipeline.plan.blockwise import BlockwisePlan, plan_blockwise
from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import FLOAT32_BYTES, FLOAT64_BYTES, DensePanels, PanelMemory
from pipeline.plan.rates import Machines, Rates, StageTime, in_waves
from pipeline.plan.release import (
    DISK_PER_STAGE,
    DISK_PER_TASK,
    MOST_TASKS,
    TILE_SCRATCH,
    WORKER_BASELINE,
    ReleasePlan,
    StagePlan,
)
from pipeline.plan.time import time_blockwise, time_in_one_task
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.encoding import Encoding, Precision, choose_encoding
from scoreshield.noise.sampler import TILE
from scoreshield.projection import METHODS
from scoreshield.projection.methods.record import ProjectionMethod
from scoreshield.projection.registry import Form, blockwise_form
from scoreshield.utility.forecast import forecast_gram


@dataclass(frozen=True)
class GramPlan(ReleasePlan):
    """A whole Gram release."""

    triangle: Triangle
    arrays: tuple[str, ...]
    """What is published: ``"factor"``, ``"gram"``, or both."""

    @property
    def geometry(self) -> Triangle:
        """The upper triangle."""
        return self.triangle

    @property
    def less(self) -> str:
        """The dense matrix is most of a release."""
        return "leave 'gram' out of arrays"

    @property
    def heading(self) -> str:
        """With the projection."""
        return f"gram of {self.records}, projection {self.method}"

    @property
    def noise_samples(self) -> int:
        """One for each pair of records; the diagonal has none."""
        return self.triangle.n * (self.triangle.n - 1) // 2

    @property
    def panel_rows(self) -> int:
        """Those of a block's rows, and those of its columns."""
        return sum(self.triangle.shape)

    def time_after_perturb(self, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
        """Projection and publication."""
        stages = [self._time_to_publish(rates, machines)]
        if self.blockwise is not None:
            stages.insert(0, time_blockwise(self.triangle, self.blockwise, rates, machines))
        elif self.projects:
            read = self.triangle.count * self.block_bytes
            stages.insert(0, time_in_one_task(self.triangle.n, self.method, read, rates))
        return tuple(stages)

    def _time_to_publish(self, rates: Rates, machines: Machines) -> StageTime:
        """Panels copied, inner products of the dense matrix, the driver's last look at all."""
        triangle = self.triangle
        rank = triangle.n if self.projects else 0
        rank = rank if self.blockwise is None else self.blockwise.work.rank
        published, work = 0, 0.0
        if "factor" in self.arrays:
            published += triangle.n * (rank + 1) * FLOAT32_BYTES
            work += 2 * published / rates.panel_bytes
        if "gram" in self.arrays:
            values = (triangle.per_side * triangle.side) ** 2
            published += values * FLOAT32_BYTES
            work += values / rates.published_values + values * rank / rates.published_flops
        tasks = self.stages[-1].tasks
        finishing = published / rates.driver_bytes
        return StageTime("publish", finishing + in_waves(work, tasks, rates, machines))


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
    projection = METHODS[method]
    as_computed = not projection.makes_factor and precision == "auto"
    encoding = choose_encoding(mechanism.sigma, "float32" if as_computed else precision)
    side = automatic_block_side(n) if block_side == "auto" else block_side
    triangle = Triangle(n, side)
    if triangle.count > MOST_TASKS:
        raise ConfigurationError(
            f"block_side: {side} cuts {n} records into {triangle.count} blocks, more than "
            f"{MOST_TASKS}; use at least {automatic_block_side(n)} or 'auto'"
        )
    blockwise, taken = None, blockwise_form(projection, n, form)
    if taken is not None:
        threads = workers * threads_per_worker
        blockwise = plan_blockwise(mechanism, triangle, encoding, taken, threads)
    stages = [_perturb(panels or DensePanels(mechanism.d), triangle, encoding, threads_per_worker)]
    if blockwise is not None:
        stages.append(_project_blockwise(triangle, blockwise, threads_per_worker))
    elif projection.makes_factor:
        stages.append(_project(triangle, projection))
    # The rank is known only once the noisy matrix is; in one task it can be anything up to n.
    rank = 0 if not projection.makes_factor else n if blockwise is None else blockwise.width
    stages.append(_publish(triangle, rank, arrays, threads_per_worker))
    return GramPlan(
        mechanism,
        method,
        tuple(stages),
        encoding,
        forecast_gram(mechanism),
        triangle,
        arrays,
        blockwise=blockwise,
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


def _perturb(
    panels: PanelMemory, triangle: Triangle, encoding: Encoding, threads: int
) -> StagePlan:
    """The largest of: reading a row panel, computing a tile, encoding the block."""
    side = min(triangle.side, triangle.n)
    block = triangle.side**2 * FLOAT32_BYTES
    computing = block + TILE_SCRATCH + panels.computing(side)
    stored = triangle.side**2 * encoding.bytes
    # As computed; as bytes, and as bytes with their checksum; as codes, and padded codes. The
    # allocator keeps what the tiles needed.
    storing = block + (2 if encoding.step is None else 4) * stored + TILE_SCRATCH
    task = 2 * panels.held(side) + max(panels.reading(side), computing, storing)
    disk = triangle.count * (stored + DISK_PER_TASK) + DISK_PER_STAGE
    return StagePlan("perturb", triangle.count, WORKER_BASELINE + threads * task, disk)


def _project(triangle: Triangle, method: ProjectionMethod) -> StagePlan:
    memory = WORKER_BASELINE + method.memory_bytes(triangle.n)
    disk = _factor_on_disk(triangle, triangle.n) + DISK_PER_STAGE
    return StagePlan("project", 1, memory, disk)


def _project_blockwise(triangle: Triangle, blockwise: BlockwisePlan, threads: int) -> StagePlan:
    """Without the blocks that workers hold: those get what is left (:func:`cache_bytes`)."""
    memory = WORKER_BASELINE + threads * blockwise.task_bytes
    disk = blockwise.disk_bytes + _factor_on_disk(triangle, blockwise.width) + DISK_PER_STAGE
    return StagePlan("project", blockwise.tasks, memory, disk)


def _publish(triangle: Triangle, rank: int, arrays: tuple[str, ...], threads: int) -> StagePlan:
    """The larger of: multiplying two panels in float64, encoding a block and its mirror."""
    side, per_side = min(triangle.side, triangle.n), triangle.per_side
    panels = 2 * side * rank * FLOAT32_BYTES
    multiplying = 2 * side * rank * FLOAT64_BYTES + side**2 * (FLOAT64_BYTES + FLOAT32_BYTES)
    task = panels + max(multiplying, 4 * side**2 * FLOAT32_BYTES)
    tasks, disk = 0, DISK_PER_STAGE
    if "factor" in arrays:
        tasks += per_side
        disk += _factor_on_disk(triangle, rank)
    if "gram" in arrays:
        tasks += triangle.count
        disk += per_side**2 * (side**2 * FLOAT32_BYTES + DISK_PER_TASK)
    return StagePlan("publish", tasks, WORKER_BASELINE + threads * task, disk)


def _factor_on_disk(triangle: Triangle, rank: int) -> int:
    """Factor and diagonal in whole panels."""
    rows = triangle.per_side * min(triangle.side, triangle.n)
    return rows * (rank + 1) * FLOAT32_BYTES + 2 * triangle.per_side * DISK_PER_TASK
