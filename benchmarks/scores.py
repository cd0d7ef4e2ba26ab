"""The perturb stage of a scores release against the same blocks without privacy rules.

The plain side computes the same blockwise inner products (float64, the same queries, records and
blocks) and adds NumPy normals. It neither checks records nor rounds, draws from a seeded generator,
and keeps no receipts. Both sides read the same gallery and write float32 blocks with a checksum to
Zarr, and each run gets a fresh local cluster of worker processes with one thread and one BLAS
thread each. Repetitions alternate between them, so that a busy machine slows both, and medians are
reported. Compare ratios between machines, not seconds.

    python benchmarks/scores.py
    python benchmarks/scores.py --n 200000 --m 16 --json
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from distributed import Client
from numpy.typing import NDArray
from perturb import (
    DELTA,
    EPSILON,
    GIB,
    MEMORY_LIMIT,
    MIB,
    Measurement,
    measured,
    medians,
    ratios,
    scratch,
)

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.store import panels
from pipeline.ingest.queries import Queries, keep_queries, kept_queries, queries_digest
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.perturb.tasks import ScoresJob, perturb_scores
from pipeline.plan.geometry import Rectangle
from pipeline.plan.scores import ScoresPlan, plan_scores
from pipeline.storage.blocks import create_store
from pipeline.storage.durable import make_private
from pipeline.storage.layout import EMBEDDINGS
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency

_ROWS = 8192


@dataclass(frozen=True)
class PlainJob:
    """What the plain side's tasks have in common."""

    gallery: Path
    queries: Path
    queries_sha256: str
    store: Path
    rectangle: Rectangle
    sigma: float


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="scores-benchmark-") as folder:
        place = Path(folder)
        require_disk(place, arguments)
        plan = make_inputs(place, arguments)
        ours: list[Measurement] = []
        plain: list[Measurement] = []
        for _ in range(arguments.repeat):
            ours.append(perturb_stage(place, plan, arguments.workers))
            plain.append(plain_blocks(place, plan, arguments.workers))
    report(arguments, plan, ours, plain)


def require_disk(place: Path, arguments: argparse.Namespace) -> None:
    """Stop before a benchmark that would fill the disk."""
    needed = 1.5 * 4 * arguments.n * (arguments.d + arguments.m)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SystemExit(
            f"{place} has {free / GIB:.1f} GiB free, the benchmark needs {needed / GIB:.1f}; "
            "set TMPDIR to a larger disk, or choose a smaller --n"
        )


def make_inputs(place: Path, arguments: argparse.Namespace) -> ScoresPlan:
    """A gallery of random unit rows from a fixed seed, and the plan of its scores."""
    generator = np.random.default_rng(0)
    gallery = create_embeddings(place / "gallery.zarr", arguments.n, arguments.d)
    for start, stop in panels(arguments.n, _ROWS):
        gallery[start:stop] = to_fixed(generator.standard_normal((stop - start, arguments.d)))
    rows = to_fixed(generator.standard_normal((arguments.m, arguments.d)))
    queries = Queries(rows, queries_digest(rows))
    keep_queries(place, queries)
    mechanism = scores_mechanism(arguments.n, rows, EPSILON, DELTA, Adjacency(), FULL_RANGE)
    return plan_scores(mechanism, len(rows), "auto", threads_per_worker=1)


def perturb_stage(place: Path, plan: ScoresPlan, workers: int) -> Measurement:
    """Our side: the perturb stage as a release runs it, with a fresh key and receipts."""
    with scratch(place / "ours") as folder:
        key_file = folder / "release.key"
        create_key(key_file, bytes(32), "benchmark", plan.mechanism)
        job = ScoresJob(
            gallery=place / "gallery.zarr",
            queries=place / "queries.npy",
            queries_sha256=queries_digest(np.load(place / "queries.npy")),
            store=folder / "noisy.zarr",
            receipts=make_private(folder / "receipts"),
            key_file=key_file,
            key_commitment=commitment(key_file),
            release_id="benchmark",
            mechanism=plan.mechanism,
            geometry=plan.rectangle,
        )
        create_store(job.store, plan.rectangle)
        return timed(folder, workers, "perturb", perturb_scores, job)


def plain_blocks(place: Path, plan: ScoresPlan, workers: int) -> Measurement:
    """The other side, block by block through the same window of tasks."""
    with scratch(place / "plain") as folder:
        job = PlainJob(
            gallery=place / "gallery.zarr",
            queries=place / "queries.npy",
            queries_sha256=queries_digest(np.load(place / "queries.npy")),
            store=folder / "noisy.zarr",
            rectangle=plan.rectangle,
            sigma=plan.mechanism.sigma,
        )
        create_store(job.store, plan.rectangle)
        return timed(folder, workers, "plain", plain_block, job)


def plain_block(job: PlainJob, index: int) -> int:
    """Inner products, NumPy normals, one chunk."""
    rows, columns = job.rectangle.region(index)
    queries = kept_queries(job.queries, job.queries_sha256)[rows].astype(np.float64)
    records: NDArray[Any] = zarr.open_group(job.gallery, mode="r")[EMBEDDINGS][columns]
    scores = queries @ records.astype(np.float64).T
    scores += job.sigma * np.random.default_rng(index).standard_normal(scores.shape)
    padded = np.zeros(job.rectangle.shape, dtype=np.float32)
    padded[: scores.shape[0], : scores.shape[1]] = scores
    zarr.open_group(job.store, mode="r+")["blocks"][index] = padded
    return index


def timed(folder: Path, workers: int, name: str, task: Any, job: Any) -> Measurement:
    """All blocks of one side on a cluster of its own."""

    def run(client: Client) -> None:
        finished = run_tasks(client, name, task, job, range(job.rectangle.count))
        assert sum(1 for _ in finished) == job.rectangle.count

    cluster = Cluster.model_validate(
        {"workers": workers, "threads_per_worker": 1, "memory_limit": MEMORY_LIMIT}
    )
    with open_cluster(cluster, folder / "scratch") as client:
        return measured(client, "pipeline.perturb.tasks", run, job.store)


def report(
    arguments: argparse.Namespace,
    plan: ScoresPlan,
    ours: list[Measurement],
    plain: list[Measurement],
) -> None:
    planned = plan.stages[0].peak_worker_bytes
    result: dict[str, Any] = {
        "n": arguments.n,
        "d": arguments.d,
        "m": arguments.m,
        "workers": arguments.workers,
        "repeat": arguments.repeat,
        "block": plan.rectangle.shape,
        "perturb": medians(ours),
        "plain": medians(plain),
        "perturb_over_plain": ratios(plain, ours),
        "planned_peak_worker_bytes": planned,
        "peak_over_planned": round(medians(ours)["peak_worker_bytes"] / planned, 3),
        "machine": platform.machine(),
        "runs": {
            "perturb": [asdict(one) for one in ours],
            "plain": [asdict(one) for one in plain],
        },
    }
    print(json.dumps(result) if arguments.json else as_text(result))


def as_text(result: dict[str, Any]) -> str:
    """A table for a person."""
    rows, columns = result["block"]
    lines = [
        f"n = {result['n']}, d = {result['d']}, m = {result['m']}, {result['workers']} workers, "
        f"blocks of {rows} x {columns}, medians of {result['repeat']} alternating repetitions",
        "",
        f"{'':8s} {'wall s':>8s} {'CPU s':>8s} {'GiB':>6s} {'tasks':>6s} {'peak MiB':>9s}",
    ]
    for side in ("perturb", "plain"):
        figures = result[side]
        lines.append(
            f"{side:8s} {figures['wall_seconds']:8.2f} {figures['cpu_seconds']:8.2f} "
            f"{figures['disk_bytes'] / GIB:6.2f} {figures['tasks']:6.0f} "
            f"{figures['peak_worker_bytes'] / MIB:9.0f}"
        )
    ratio = result["perturb_over_plain"]
    lines += [
        f"{'ratio':8s} {ratio['wall_seconds']:8.2f} {ratio['cpu_seconds']:8.2f} "
        f"{ratio['disk_bytes']:6.2f} {ratio['tasks']:6.2f} {ratio['peak_worker_bytes']:9.2f}",
        "",
        f"planned peak a worker {result['planned_peak_worker_bytes'] / MIB:.0f} MiB, "
        f"measured {result['peak_over_planned']:.2f} of it",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1_000_000, help="records (default 1000000)")
    parser.add_argument("--d", type=int, default=128, help="features (default 128)")
    parser.add_argument("--m", type=int, default=64, help="queries (default 64)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
