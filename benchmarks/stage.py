"""A stage of a release and what it is held against, each on a fresh cluster of its own.

Used by the benchmarks of perturb, scores and ratings: one run of a side is measured (wall and
processor time, disk, tasks, memory), medians of alternating repetitions are put side by side.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.plan.release import ReleasePlan
from pipeline.storage.durable import make_private

EPSILON, DELTA = 8.0, 1e-6
MEMORY_LIMIT = 4 * 2**30
GIB, MIB = 2**30, 2**20
OPTIONS = {"workers": (2, "worker processes"), "repeat": (3, "repetitions")}


@dataclass(frozen=True)
class Measurement:
    """One run of one side, its cluster's start and end left out."""

    wall_seconds: float
    cpu_seconds: float
    """Of the workers together."""
    disk_bytes: int
    tasks: int
    """That the scheduler saw finished."""
    peak_worker_bytes: int
    """Largest resident memory (VmHWM) of any worker, since its start."""


class FinishedTasks(SchedulerPlugin):
    """Counts the tasks that workers finished."""

    def __init__(self) -> None:
        self.count = 0

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Called by the scheduler on every change of a task's state."""
        self.count += start == "processing" and finish == "memory"


def require_disk(place: Path, needed: int) -> None:
    """Stop before a benchmark that would fill the disk."""
    free = shutil.disk_usage(place).free
    if free < 1.5 * needed:
        raise SystemExit(
            f"{place} has {free / GIB:.1f} GiB free, the benchmark needs {1.5 * needed / GIB:.1f}; "
            "set TMPDIR to a larger disk, or choose a smaller --n"
        )


def job_fields(folder: Path, plan: ReleasePlan) -> dict[str, Any]:
    """What every job of noisy blocks has, with a fresh key and an empty folder of receipts."""
    key_file = folder / "release.key"
    create_key(key_file, bytes(32), "benchmark", plan.mechanism)
    return {
        "store": folder / "noisy.zarr",
        "receipts": make_private(folder / "receipts"),
        "key_file": key_file,
        "key_commitment": commitment(key_file),
        "release_id": "benchmark",
        "mechanism": plan.mechanism,
        "geometry": plan.geometry,
    }


def all_blocks(folder: Path, workers: int, task: Any, job: Any) -> Measurement:
    """All blocks of one side, through the window of tasks that a release has."""

    def run(client: Client) -> None:
        finished = run_tasks(client, task.__name__, task, job, range(job.geometry.count))
        assert sum(1 for _ in finished) == job.geometry.count

    cluster = Cluster.model_validate(
        {"workers": workers, "threads_per_worker": 1, "memory_limit": MEMORY_LIMIT}
    )
    with open_cluster(cluster, folder / "scratch") as client:
        return measured(client, "pipeline.perturb.tasks", run, job.store)


def measured(
    client: Client, module: str, run: Callable[[Client], None], store: Path
) -> Measurement:
    """Time ``run`` on workers that have imported ``module``, which it needs, beforehand."""
    client.run(import_module, module)
    finished = FinishedTasks()
    cluster = client.cluster
    assert cluster is not None
    cluster.scheduler.add_plugin(finished)
    # What an earlier side left to the disk's cache must not be written at this one's expense.
    os.sync()
    busy = sum(client.run(time.process_time).values())
    start = time.perf_counter()
    run(client)
    wall = time.perf_counter() - start
    return Measurement(
        wall_seconds=wall,
        cpu_seconds=sum(client.run(time.process_time).values()) - busy,
        disk_bytes=sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
        tasks=finished.count,
        peak_worker_bytes=max(client.run(peak_resident_bytes).values()),
    )


def peak_resident_bytes() -> int:
    """VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not report VmHWM in /proc/self/status")


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A private folder that is gone afterwards, as is what a cluster left in the environment.

    Dask puts the settings of its workers into the environment of the process that starts them,
    where the other side's workers would find them.
    """
    environment = dict(os.environ)
    try:
        yield make_private(folder)
    finally:
        shutil.rmtree(folder)
        os.environ.clear()
        os.environ.update(environment)


def medians(runs: list[Measurement]) -> dict[str, float]:
    """Median of each figure."""
    return {
        name: round(statistics.median(asdict(one)[name] for one in runs), 3)
        for name in asdict(runs[0])
    }


def ratios(over: list[Measurement], under: list[Measurement]) -> dict[str, float]:
    """Median of each figure's ratio, repetition by repetition."""
    pairs = [(asdict(a), asdict(b)) for a, b in zip(over, under, strict=True)]
    return {
        name: round(statistics.median(a[name] / b[name] for a, b in pairs), 2)
        for name in pairs[0][0]
    }


def report(
    arguments: Any,
    plan: ReleasePlan,
    facts: dict[str, Any],
    sides: dict[str, list[Measurement]],
    compared: tuple[str, str],
) -> None:
    """Print the medians of each side and the ratio of the compared ones, where both were run."""
    planned, perturb = plan.stages[0].peak_worker_bytes, medians(sides["perturb"])
    result: dict[str, Any] = {
        **facts,
        "workers": arguments.workers,
        "repeat": arguments.repeat,
        **{side: medians(runs) for side, runs in sides.items()},
        "planned_peak_worker_bytes": planned,
        "peak_over_planned": round(perturb["peak_worker_bytes"] / planned, 3),
        "machine": platform.machine(),
        "runs": {side: [asdict(one) for one in runs] for side, runs in sides.items()},
    }
    rows = [
        (side, {**result[side], "disk_bytes": result[side]["disk_bytes"] / GIB}, 0, MIB)
        for side in sides
    ]
    if sides.keys() >= set(compared):
        over, under = compared
        ratio = result[f"{over}_over_{under}"] = ratios(sides[over], sides[under])
        rows.append(("ratio", ratio, 2, 1))
    if arguments.json:
        print(json.dumps(result))
        return
    shown = ", ".join(f"{name} = {value}" for name, value in facts.items())
    print(
        f"{shown}, {arguments.workers} workers, medians of {arguments.repeat} alternating "
        f"repetitions\n\n{'':8s} {'wall s':>8s} {'CPU s':>8s} {'GiB':>6s} {'tasks':>6s} "
        f"{'peak MiB':>9s}"
    )
    for name, figures, digits, unit in rows:
        print(
            f"{name:8s} {figures['wall_seconds']:8.2f} {figures['cpu_seconds']:8.2f} "
            f"{figures['disk_bytes']:6.2f} {figures['tasks']:6.{digits}f} "
            f"{figures['peak_worker_bytes'] / unit:9.{digits}f}"
        )
    print(
        f"\nplanned peak a worker {planned / MIB:.0f} MiB, measured "
        f"{result['peak_over_planned']:.2f} of it"
    )
