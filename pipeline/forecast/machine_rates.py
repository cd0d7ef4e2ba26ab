"""Measuring how fast the configured cluster is: a few seconds of real kernels on made-up data.

Nothing of the gallery is read, nothing is spent and no ledger is asked. The scratch folder is
private and removed at the end; what stays is the file of rates
(:mod:`pipeline.forecast.rates_file`).

Each kernel runs on all threads of the cluster at the same time, and the slowest of them counts, so
that a rate holds while everything is busy; of several rounds the fastest counts, because others may
be using the machine. Where a cost has two parts, such as noise and inner products of a block, it is
measured at two sizes and split by a straight line.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_at_once, run_tasks
from pipeline.config.model import Config
from pipeline.forecast import rate_tasks as tasks
from pipeline.forecast.rates_file import MachineRates, here_and_now, save_rates
from pipeline.gallery.dense import create_embeddings
from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import FLOAT32_BYTES
from pipeline.plan.rates import Rates
from pipeline.plan.release import ReleasePlan
from pipeline.plan.shares import FEWEST_ROWS, RowRanges
from pipeline.progress import Reporter
from pipeline.project.dense import describe_array
from pipeline.project.panel_file import PanelFile
from pipeline.publish.gram import prepare_release, publish_block
from pipeline.run.gram import gram_mechanism
from pipeline.storage import arrays, blocks
from pipeline.storage.durable import make_private, sync_tree
from pipeline.storage.layout import PROJECTION_STORE
from scoreshield.noise.sampler import TILE
from scoreshield.projection.blockwise.panels import start_pattern
from scoreshield.projection.foretold import EIGENDECOMPOSITION_FLOPS

ROUNDS = 3
ENOUGH_SECONDS = 0.5
"""A kernel that has taken so long is not repeated."""
FEW_COLUMNS = 8
MOST_COLUMNS = 512
TYPICAL_COLUMNS = 64
"""Columns of a panel where nothing blockwise is planned."""
FEW_FEATURES = 8
DENSE_SIZE, SMALL_SIZE = 700, 300
HANDED_OUT = 60
_STAGE = "calibrate"


def measure_rates(config: Config, plan: ReleasePlan, reporter: Reporter) -> MachineRates:
    """Measure and store the rates of the configured cluster, at the sizes of a plan.

    Raises
    ------
    RunFailed
        The cluster did not do what it was asked to.
    """
    private = make_private(config.private)
    folder = Path(tempfile.mkdtemp(dir=private, prefix="calibration-"))
    try:
        reporter.begin(_STAGE, len(_PARTS), "kernels")
        start = time.monotonic()
        with open_cluster(config.cluster, folder) as client:
            bench = _prepare(config, plan, folder, client)
            clock = _Clock(client, bench, plan, config.cluster.largest_team)
            rates = _measured(clock, start, reporter)
        reporter.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = here_and_now(rates, config.cluster, plan.encoding.dtype)
    save_rates(private, found)
    return found


class _Clock:
    """Times kernels on every thread of a cluster.

    Parameters
    ----------
    client : of the cluster
    bench : the made-up data
    plan : whose sizes matter
    team : threads of a projection in one task
    """

    def __init__(self, client: Client, bench: tasks.Bench, plan: ReleasePlan, team: int) -> None:
        self.client, self.bench, self.plan, self.team = client, bench, plan, team
        self.places = _places(client)
        self.columns = _columns(plan)
        self._number = 0

    @property
    def threads(self) -> int:
        """Threads of the cluster."""
        return len(self.places)

    def seconds(self, kernel: Callable[[Any, int], float], job: Any) -> float:
        """Seconds of the slowest thread in the fastest round; a first round warms up."""
        self._everywhere(kernel, job)
        rounds: list[float] = []
        while len(rounds) < ROUNDS and sum(rounds) < ENOUGH_SECONDS:
            rounds.append(max(self._everywhere(kernel, job)))
        return min(rounds)

    def round_seconds(self, kernel: Callable[[Any, int], Any], jobs: list[Any]) -> float:
        """Seconds that the driver waits for a round of tasks."""
        return min(self._round(kernel, jobs) for _ in range(2 * ROUNDS))

    def panel(self, columns: int, rows: RowRanges) -> PanelFile:
        """A panel of made-up numbers; made once."""
        folder = self.bench.folder / f"panel-{rows.n}-{rows.rows}-{columns}"
        file = PanelFile(folder, rows, columns)
        if not folder.exists():
            folder.mkdir()
            values = start_pattern(range(rows.n), range(columns)).astype(np.float32)
            for index in range(rows.count):
                file.write(index, iter([values[rows.span(index)]]))
        return file

    def projection(self, rank: int) -> Path:
        """A stored factor of that rank for two blocks a side."""
        folder = self.bench.folder / f"projection-{rank}"
        if not folder.exists():
            folder.mkdir()
            store, side = folder / PROJECTION_STORE, self.bench.triangle.side
            arrays.create_group(store)
            arrays.create_array(store, "factor", (2 * side, rank), (side, rank))
            values = start_pattern(range(2 * side), range(rank)).astype(np.float32)
            arrays.open_for_writing(store, "factor")[...] = values / np.float32(rank)
        return folder

    def _everywhere(self, kernel: Callable[[Any, int], float], job: Any) -> list[float]:
        self._number += 1
        name = f"{kernel.__name__}-{self._number}"
        return run_at_once(self.client, name, kernel, [job] * self.threads, self.places)

    def _round(self, kernel: Callable[[Any, int], Any], jobs: list[Any]) -> float:
        self._number += 1
        start = time.perf_counter()
        run_at_once(self.client, f"round-{self._number}", kernel, jobs)
        return time.perf_counter() - start


def _places(client: Client) -> list[str]:
    """The address of its worker for each thread."""
    return [
        address for address, threads in sorted(client.nthreads().items()) for _ in range(threads)
    ]


def _columns(plan: ReleasePlan) -> int:
    """The width of a panel at which products are measured."""
    planned = TYPICAL_COLUMNS if plan.blockwise is None else plan.blockwise.work.mean_columns
    return max(4 * FEW_COLUMNS, min(planned, MOST_COLUMNS))


def _prepare(config: Config, plan: ReleasePlan, folder: Path, client: Client) -> tasks.Bench:
    """Everything that kernels read, and a worker process that has loaded what it needs."""
    mechanism = gram_mechanism(config, plan.mechanism.n, plan.mechanism.d)
    triangle = Triangle(4 * _side(plan), _side(plan))
    bench = tasks.Bench(folder, triangle, mechanism)
    bench.receipts.mkdir()
    rows = 2 * triangle.side
    create_embeddings(bench.gallery, rows, mechanism.d)[:] = tasks.made_up_rows(rows, mechanism.d)
    blocks.create_store(bench.noisy, triangle, plan.encoding)
    for index in range(len(_places(client))):
        bench.own(index).mkdir()
    return bench


def _side(plan: ReleasePlan) -> int:
    """Records along a side of the blocks that are measured: those of the plan, but never many."""
    return max(256, min(plan.geometry.shape[1], 2 * TILE))


def _measured(clock: _Clock, start: float, reporter: Reporter) -> Rates:
    found: dict[str, float] = {}
    # Every thread has loaded what tasks need once the first kernel has run everywhere.
    clock.seconds(tasks.nothing, None)
    clock.seconds(tasks.gallery_seconds, clock.bench)
    found["start_seconds"] = time.monotonic() - start
    for done, part in enumerate(_PARTS, start=1):
        found |= part(clock)
        reporter.advance(done)
    return Rates(**found)


def _perturb_rates(clock: _Clock) -> dict[str, float]:
    bench = clock.bench
    d, samples = max(8 * FEW_FEATURES, bench.mechanism.d), bench.triangle.side**2
    few, many = (clock.seconds(tasks.noise_seconds, (bench, count)) for count in (FEW_FEATURES, d))
    split = Split.of((few, 2 * samples * FEW_FEATURES), (many, 2 * samples * d))
    return {"noise_samples": samples / split.fixed, "exact_flops": split.rate}


def _storage_rates(clock: _Clock) -> dict[str, float]:
    bench = clock.bench
    panel = bench.triangle.side * bench.mechanism.d * FLOAT32_BYTES
    block = bench.triangle.side**2 * clock.plan.encoding.bytes
    for index in range(bench.triangle.count):
        tasks.write_seconds(bench, index)
    return {
        "gallery_bytes": panel / clock.seconds(tasks.gallery_seconds, bench),
        "block_write_bytes": block / clock.seconds(tasks.write_seconds, bench),
        "block_read_bytes": block / clock.seconds(tasks.read_seconds, bench),
    }


def _product_rates(clock: _Clock) -> dict[str, float]:
    bench, side = clock.bench, clock.bench.triangle.side
    rows, values = RowRanges(4 * side, side), 4 * side**2
    narrow, wide = (clock.panel(columns, rows) for columns in (FEW_COLUMNS, clock.columns))
    few, many = (clock.seconds(tasks.product_seconds, (bench, panel)) for panel in (narrow, wide))
    # Each block is multiplied twice: as it is, and transposed.
    split = Split.of((few, 4 * values * narrow.columns), (many, 4 * values * wide.columns))
    computed = clock.seconds(tasks.computed_seconds, (bench, wide, narrow))
    flops = 2 * values * wide.columns + 4 * values * narrow.columns
    return {
        "block_values": values / split.fixed,
        "product_flops": split.rate,
        "computed_values": values / max(computed - flops / split.rate, 0.1 * computed),
    }


def _panel_rates(clock: _Clock) -> dict[str, float]:
    rows = RowRanges(FEWEST_ROWS, FEWEST_ROWS)
    measured = []
    for columns in (FEW_COLUMNS, clock.columns):
        panel = clock.panel(columns, rows)
        seconds = clock.seconds(tasks.step_seconds, (clock.bench, panel))
        # Read and written by the combination, both read by the reduction.
        moved = 4 * rows.n * columns * FLOAT32_BYTES
        measured.append((seconds / moved, 4 * rows.n * columns**2 / moved))
    split = Split.of(*measured)
    return {"panel_bytes": 1.0 / split.fixed, "panel_flops": split.rate}


def _publish_rates(clock: _Clock) -> dict[str, float]:
    bench, side = clock.bench, clock.bench.triangle.side
    for index in range(clock.threads):
        prepare_release(
            tasks.publish_job(bench, clock.projection(FEW_COLUMNS), bench.own(index) / "release")
        )
    few, many = (
        clock.seconds(tasks.publish_seconds, (bench, clock.projection(rank)))
        for rank in (FEW_COLUMNS, clock.columns)
    )
    # A block and its mirror are two values for one inner product.
    values = 2 * side**2
    split = Split.of((few, values * FEW_COLUMNS), (many, values * clock.columns))
    return {"published_values": values / split.fixed, "published_flops": split.rate}


def _driver_rates(clock: _Clock) -> dict[str, float]:
    """What the driver does alone: digests of the arrays, and small eigenproblems."""
    folder = clock.bench.own(0) / "release"
    release = tasks.publish_job(clock.bench, clock.projection(FEW_COLUMNS), folder)
    for index in (0, 2):
        publish_block(release, index)
    array = arrays.open_for_reading(release.store, "gram")
    start = time.perf_counter()
    describe_array(array)
    sync_tree(folder, file_mode=0o600, folder_mode=0o700)
    seconds = time.perf_counter() - start
    small = min(tasks.small_eigen_seconds(SMALL_SIZE) for _ in range(ROUNDS))
    job = (DENSE_SIZE, clock.team)
    (dense,) = run_at_once(clock.client, "eigen", tasks.eigen_seconds, [job])
    return {
        "driver_bytes": array.nbytes / seconds,
        "driver_flops": EIGENDECOMPOSITION_FLOPS * SMALL_SIZE**3 / small,
        "eigen_flops": EIGENDECOMPOSITION_FLOPS * DENSE_SIZE**3 / dense,
    }


def _task_rates(clock: _Clock) -> dict[str, float]:
    """What handing out tasks costs, and what sending numbers with them adds."""
    few, many = clock.threads, max(4 * clock.threads, HANDED_OUT)
    short, long = (clock.round_seconds(tasks.nothing, [None] * count) for count in (few, many))
    each = max((long - short) / (many - few), 0.01 * long / many)
    start = time.perf_counter()
    handed_out = sum(
        1 for _ in run_tasks(clock.client, "nothing", tasks.nothing, None, range(many))
    )
    through_the_window = (time.perf_counter() - start) / handed_out
    sent = np.ones((clock.columns, clock.columns))
    messages = clock.round_seconds(tasks.returned, [sent] * few)
    seconds = max(messages - short, 0.05 * messages)
    return {
        "task_seconds": through_the_window,
        "round_seconds": max(short - few * each, 0.1 * short),
        "round_task_seconds": each,
        "message_bytes": 2 * few * sent.nbytes / seconds,
    }


_PARTS: tuple[Callable[[_Clock], dict[str, float]], ...] = (
    _perturb_rates,
    _storage_rates,
    _product_rates,
    _panel_rates,
    _publish_rates,
    _driver_rates,
    _task_rates,
)


@dataclass(frozen=True)
class Split:
    """A cost as a part that does not depend on the operations, and a rate for those.

    Attributes
    ----------
    fixed : seconds without any operation
    rate : operations a second
    """

    fixed: float
    rate: float

    @classmethod
    def of(cls, few: tuple[float, float], many: tuple[float, float]) -> Split:
        """Through two points (seconds, operations).

        Timings scatter: a line that would leave nothing for one of the parts leaves it a twentieth.
        """
        (low, few_operations), (high, many_operations) = few, many
        slope = max(high - low, 0.05 * high) / (many_operations - few_operations)
        return cls(max(low - slope * few_operations, 0.05 * low), 1.0 / slope)
