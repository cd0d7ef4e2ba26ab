"""What a release of scores will do, counted before it does it: m queries against n records.

A block is all queries of one noise tile (1024 of them at most) by a panel of records: as many
records as keep the panel and the block small, in whole noise tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import ConfigurationError
from pipeline.plan.geometry import Rectangle
from pipeline.plan.memory import FLOAT32_BYTES, DensePanels, PanelMemory
from pipeline.plan.rates import Machines, Rates, StageTime, in_waves
from pipeline.plan.release import (
    DISK_PER_STAGE,
    DISK_PER_TASK,
    MIB,
    MOST_TASKS,
    TILE_SCRATCH,
    WORKER_BASELINE,
    ReleasePlan,
    StagePlan,
)
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise import encoding
from scoreshield.noise.sampler import TILE
from scoreshield.utility.forecast import forecast_scores

METHOD = "clip"
"""Scores are clipped to their range, which is their projection onto the feasible set."""

_PANEL_BYTES = 8 * MIB
_BLOCK_BYTES = 32 * MIB
# A digest over the rows of a release reads this much at a time, and each chunk once.
_ROWS_BYTES = 64 * MIB
_MOST_CHUNK_ROWS = 64


@dataclass(frozen=True)
class ScoresPlan(ReleasePlan):
    """A whole release of scores."""

    rectangle: Rectangle
    chunk_rows: int
    """Queries of one published chunk, which is as many records wide as a noisy block."""

    @property
    def geometry(self) -> Rectangle:
        """The queries by the records."""
        return self.rectangle

    @property
    def less(self) -> str:
        """Scores are all that is released."""
        return "ask fewer queries"

    @property
    def heading(self) -> str:
        """With the number of queries."""
        m = self.rectangle.m
        words = "public query" if m == 1 else "public queries"
        return f"scores of {m} {words} against {self.records}, clipped to their range"

    @property
    def noise_samples(self) -> int:
        """One for each score."""
        return self.rectangle.m * self.rectangle.n

    @property
    def panel_rows(self) -> int:
        """Those of the block's columns; queries are kept."""
        return self.rectangle.columns

    def time_after_perturb(self, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
        """Publication, which clips."""
        values = self.noise_samples
        work = values * FLOAT32_BYTES / rates.block_read_bytes + values / rates.published_values
        finishing = values * FLOAT32_BYTES / rates.driver_bytes
        seconds = finishing + in_waves(work, self.rectangle.count, rates, machines)
        return (StageTime("publish", seconds),)


def plan_scores(
    mechanism: Mechanism,
    m: int,
    block_side: int | Literal["auto"],
    threads_per_worker: int,
    panels: PanelMemory | None = None,
) -> ScoresPlan:
    """Count blocks, tasks, bytes and memory of a release of scores.

    Parameters
    ----------
    m : number of queries that ``mechanism`` was calibrated for.
    block_side : records of one block.
    panels : what panels of the gallery cost; by default those of embeddings of d features.

    Raises
    ------
    ConfigurationError
        The requested block side makes more tasks than a scheduler carries well.
    """
    n, d = mechanism.n, mechanism.d
    automatic = automatic_columns(m, n, d)
    columns = automatic if block_side == "auto" else block_side
    rectangle = Rectangle(m, n, min(m, TILE), min(columns, n))
    if rectangle.count > MOST_TASKS:
        raise ConfigurationError(
            f"block_side: {columns} cuts {m} x {n} scores into {rectangle.count} blocks, more than "
            f"{MOST_TASKS}; use at least {automatic} or 'auto'"
        )
    rows = chunk_rows(m, n)
    stages = (
        _perturb(panels or DensePanels(d), d, rectangle, threads_per_worker),
        _publish(rectangle, rows, threads_per_worker),
    )
    # What is published are these very values: rounding would make ties of what can be ranked.
    return ScoresPlan(
        mechanism, METHOD, stages, encoding.FLOAT32, forecast_scores(mechanism), rectangle, rows
    )


def automatic_columns(m: int, n: int, d: int) -> int:
    """Records of a block: whole noise tiles, within 8 MiB of records and 32 MiB of scores.

    Small galleries get one tile, so that several workers have something to do; long ones get more
    tiles where the limit of tasks asks for it.
    """
    if n <= 8 * TILE:
        return TILE
    rows = min(m, TILE)
    widest = min(_PANEL_BYTES // (FLOAT32_BYTES * d), _BLOCK_BYTES // (FLOAT32_BYTES * rows))
    columns = max(1, widest // TILE) * TILE
    while Rectangle(m, n, rows, columns).count > MOST_TASKS and columns < n:
        columns += TILE
    return columns


def chunk_rows(m: int, n: int) -> int:
    """Queries of one published chunk: a power of two, so that blocks hold whole chunks, or all."""
    rows = _MOST_CHUNK_ROWS
    while rows > 1 and rows * n * FLOAT32_BYTES > _ROWS_BYTES:
        rows //= 2
    return min(m, rows)


def _perturb(panels: PanelMemory, d: int, rectangle: Rectangle, threads: int) -> StagePlan:
    """The largest of: reading a panel of records, computing a tile, encoding the block."""
    rows, columns = rectangle.shape
    queries = 2 * rectangle.m * d * FLOAT32_BYTES
    block = rows * columns * FLOAT32_BYTES
    tile = TILE_SCRATCH * rows // TILE + 4 * MIB
    computing = block + tile + panels.scoring(rows, columns)
    # As an array, as bytes, and as bytes with their checksum.
    encoding = 3 * block
    task = panels.held(columns) + max(panels.reading(columns), computing, encoding)
    disk = rectangle.count * (block + DISK_PER_TASK) + queries + DISK_PER_STAGE
    return StagePlan("perturb", rectangle.count, WORKER_BASELINE + queries + threads * task, disk)


def _publish(rectangle: Rectangle, rows: int, threads: int) -> StagePlan:
    """A block as read, as clipped, and a chunk as it is encoded."""
    block_rows, columns = rectangle.shape
    block = block_rows * columns * FLOAT32_BYTES
    chunks = -(-rectangle.m // rows) * -(-rectangle.n // columns)
    disk = chunks * (rows * columns * FLOAT32_BYTES + DISK_PER_TASK) + DISK_PER_STAGE
    # Zarr encodes four chunks at a time, each as an array, as bytes and with its checksum.
    task = 4 * block + 12 * rows * columns * FLOAT32_BYTES
    return StagePlan("publish", rectangle.count, WORKER_BASELINE + threads * task, disk)
