"""The perturb stage against a plain dask.array script, both measured in the same run.

The plain script is the one that a person would write: X @ X.T plus da.random normals, to_zarr. It
knows nothing of privacy: float32 products, a seeded generator, the full square, no receipts. Both
sides read the same rows from Zarr, and each run gets a fresh local cluster of worker processes with
one thread and one BLAS thread each. Repetitions alternate between them, so that a busy machine
slows both, and medians are reported. Compare ratios between machines, not seconds.

    python benchmarks/perturb.py
    python benchmarks/perturb.py --n 40000 --without-baseline --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from numpy.typing import NDArray

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.store import panels
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.gram import plan_release
from pipeline.plan.release import ReleasePlan
from pipeline.storage.blocks import create_store
from pipeline.storage.durable import make_private
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import FLOAT32, Encoding

EPSILON, DELTA = 8.0, 1e-6
GALLERY = "gallery.zarr"
PLAIN_CHUNK = 2048
"""Rows of a chunk of X, and so the side of a block of the plain product: as wide as ours."""
MEMORY_LIMIT = 4 * 2**30
GIB, MIB = 2**30, 2**20


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


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="perturb-benchmark-") as folder:
        place = Path(folder)
        plan = make_inputs(place, arguments.n, arguments.d)
        require_disk(place, plan, arguments.without_baseline)
        ours: list[Measurement] = []
        theirs: list[Measurement] = []
        for _ in range(arguments.repeat):
            ours.append(perturb_stage(place, place / GALLERY, plan, arguments.workers))
            if not arguments.without_baseline:
                theirs.append(plain_script(place, plan, arguments.workers))
    report(arguments, plan, ours, theirs)


def make_inputs(place: Path, n: int, d: int) -> ReleasePlan:
    """Random unit rows from a fixed seed as a gallery, and the same rows as a plain Zarr array."""
    generator = np.random.default_rng(0)
    gallery = create_embeddings(place / GALLERY, n, d)
    plain = zarr.create_array(
        str(place / "x.zarr"), shape=(n, d), chunks=(min(n, PLAIN_CHUNK), d), dtype="float32"
    )
    for start, stop in panels(n, PLAIN_CHUNK):
        rows: NDArray[np.float32] = to_fixed(generator.standard_normal((stop - start, d)))
        gallery[start:stop] = plain[start:stop] = rows
    mechanism = calibrate_gram(n, d, EPSILON, DELTA)
    return plan_release(mechanism, "none", (), "auto", threads_per_worker=1)


def require_disk(place: Path, plan: ReleasePlan, without_baseline: bool) -> None:
    """Stop before a benchmark that would fill the disk."""
    square = 0 if without_baseline else 8 * plan.mechanism.n**2
    needed = max(plan.stages[0].disk_bytes, square)
    free = shutil.disk_usage(place).free
    if free < 1.5 * needed:
        raise SystemExit(
            f"{place} has {free / GIB:.1f} GiB free, the benchmark needs {1.5 * needed / GIB:.1f}; "
            "set TMPDIR to a larger disk, or choose a smaller --n"
        )


def perturb_stage(
    place: Path,
    gallery: Path,
    plan: ReleasePlan,
    workers: int,
    sparse: bool = False,
    encoding: Encoding = FLOAT32,
) -> Measurement:
    """Our side: the perturb stage as a release runs it, with a fresh key and receipts."""
    with scratch(place / "ours") as folder:
        key_file = folder / "release.key"
        create_key(key_file, bytes(32), "benchmark", plan.mechanism)
        job = PerturbJob(
            gallery=gallery,
            store=folder / "noisy.zarr",
            receipts=make_private(folder / "receipts"),
            key_file=key_file,
            key_commitment=commitment(key_file),
            release_id="benchmark",
            mechanism=plan.mechanism,
            geometry=plan.triangle,
            sparse=sparse,
        )
        create_store(job.store, plan.triangle, encoding)

        def run(client: Client) -> None:
            finished = run_tasks(client, "perturb", perturb_block, job, range(plan.triangle.count))
            assert sum(1 for _ in finished) == plan.triangle.count

        cluster = Cluster.model_validate(
            {"workers": workers, "threads_per_worker": 1, "memory_limit": MEMORY_LIMIT}
        )
        with open_cluster(cluster, folder / "scratch") as client:
            return measured(client, "pipeline.perturb.tasks", run, job.store)


def plain_script(place: Path, plan: ReleasePlan, workers: int) -> Measurement:
    """The other side: a few lines of dask.array."""
    # Workers import this file; ours must not carry the memory of what only the other side needs.
    import dask.array as da

    with scratch(place / "theirs") as folder:
        store = folder / "noisy.zarr"

        def run(_: Client) -> None:
            x = da.from_zarr(str(place / "x.zarr"))
            gram = x @ x.T
            noise = da.random.default_rng(0).normal(
                0, plan.mechanism.sigma, size=gram.shape, chunks=gram.chunks
            )
            (gram + noise).to_zarr(str(store))

        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=MEMORY_LIMIT,
                dashboard_address=None,
                local_directory=str(folder / "scratch"),
            ) as cluster,
            Client(cluster) as client,
        ):
            return measured(client, "dask.array", run, store)


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


def report(
    arguments: argparse.Namespace,
    plan: ReleasePlan,
    ours: list[Measurement],
    theirs: list[Measurement],
) -> None:
    planned = plan.stages[0].peak_worker_bytes
    result: dict[str, Any] = {
        "n": arguments.n,
        "d": arguments.d,
        "workers": arguments.workers,
        "repeat": arguments.repeat,
        "block_side": plan.triangle.side,
        "perturb": medians(ours),
        "planned_peak_worker_bytes": planned,
        "peak_over_planned": round(medians(ours)["peak_worker_bytes"] / planned, 3),
        "machine": platform.machine(),
        "runs": {"perturb": [asdict(one) for one in ours]},
    }
    if theirs:
        result["plain"] = medians(theirs)
        result["plain_over_perturb"] = ratios(ours, theirs)
        result["runs"]["plain"] = [asdict(one) for one in theirs]
    print(json.dumps(result) if arguments.json else as_text(result))


def medians(runs: list[Measurement]) -> dict[str, float]:
    """Median of each figure."""
    return {
        name: round(statistics.median(asdict(one)[name] for one in runs), 3)
        for name in asdict(runs[0])
    }


def ratios(ours: list[Measurement], theirs: list[Measurement]) -> dict[str, float]:
    """Median of each figure's ratio, plain over perturb, repetition by repetition."""
    pairs = [(asdict(a), asdict(b)) for a, b in zip(ours, theirs, strict=True)]
    return {
        name: round(statistics.median(b[name] / a[name] for a, b in pairs), 2)
        for name in pairs[0][0]
    }


def as_text(result: dict[str, Any]) -> str:
    """A table for a person."""
    lines = [
        f"n = {result['n']}, d = {result['d']}, {result['workers']} workers, "
        f"medians of {result['repeat']} alternating repetitions",
        "",
        f"{'':8s} {'wall s':>8s} {'CPU s':>8s} {'GiB':>6s} {'tasks':>6s} {'peak MiB':>9s}",
    ]
    for side in ("perturb", "plain"):
        if side in result:
            figures = result[side]
            lines.append(
                f"{side:8s} {figures['wall_seconds']:8.2f} {figures['cpu_seconds']:8.2f} "
                f"{figures['disk_bytes'] / GIB:6.2f} {figures['tasks']:6.0f} "
                f"{figures['peak_worker_bytes'] / MIB:9.0f}"
            )
    if "plain_over_perturb" in result:
        ratio = result["plain_over_perturb"]
        lines.append(
            f"{'ratio':8s} {ratio['wall_seconds']:8.2f} {ratio['cpu_seconds']:8.2f} "
            f"{ratio['disk_bytes']:6.2f} {ratio['tasks']:6.2f} {ratio['peak_worker_bytes']:9.2f}"
        )
    lines += [
        "",
        f"planned peak a worker {result['planned_peak_worker_bytes'] / MIB:.0f} MiB, "
        f"measured {result['peak_over_planned']:.2f} of it",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000, help="records (default 20000)")
    parser.add_argument("--d", type=int, default=128, help="features (default 128)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument(
        "--without-baseline", action="store_true", help="measure the perturb stage alone"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
