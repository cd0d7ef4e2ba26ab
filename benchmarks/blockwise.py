"""Blockwise projection on a local cluster: whole releases, and blocks of every precision.

`release` times the stages of whole releases of random clustered records, and watches the memory of
each worker and the disk. `precision` times products with blocks of float32, int16 and int8 in turn.

    python benchmarks/blockwise.py release --n 20000 --methods shrink nearest aap
    python benchmarks/blockwise.py release --n 100000 --memory-limit 6GiB --methods shrink nearest
    python benchmarks/blockwise.py precision --n 8000 --columns 64 --workers 1 2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from command_line import add_options, parser
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from pipeline.config.yaml import load_config
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import automatic_block_side
from pipeline.plan.shares import row_ranges
from pipeline.progress import JsonLines, Tee
from pipeline.project.operator import ClusterOperator, NoisyBlocks
from pipeline.project.panel_store import ClusterPanels
from pipeline.run.record import Timings
from pipeline.run.release import release
from pipeline.storage import blocks
from scoreshield.noise.encoding import Encoding, Precision, choose_encoding

REPETITIONS = 3

CONFIG = """
gallery: gallery.npy
privacy: {{epsilon: {epsilon}, delta: 1.0e-6, adjacency: record}}
projection: {{method: {method}}}
arrays: [factor]
ledger: {{url: "sqlite:///ledger.db", epsilon: {epsilon}, delta: 1.0e-6, create: true}}
cluster: {{workers: {workers}, memory_limit: {memory}}}
"""


def main() -> None:
    """Run what the command line asks for; one JSON line a result."""
    made = parser(__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    add_options(
        commands.add_parser("release"),
        n=(20_000, "records"),
        d=(128, "features"),
        epsilon=(200.0, "of a release"),
        workers=(2, "worker processes"),
        memory_limit=("4GiB", "of a worker"),
        methods=(["shrink", "nearest", "aap"], "of projection"),
    )
    add_options(
        commands.add_parser("precision"),
        n=(8_000, "records"),
        columns=(64, "of the panel"),
        workers=([1, 2], "worker processes"),
    )
    arguments = made.parse_args()
    if arguments.command == "release":
        for method in arguments.methods:
            print(json.dumps(timed_release(arguments, method)), flush=True)
    else:
        for workers in arguments.workers:
            result = timed_precisions(arguments.n, arguments.columns, workers)
            print(json.dumps(result), flush=True)


def timed_release(arguments: argparse.Namespace, method: str) -> dict[str, Any]:
    """Seconds of each stage of one release, and what its manifest says of the projection."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "gallery.npy", clustered(arguments.n, arguments.d))
        file = Path(folder) / "release.yaml"
        file.write_text(
            CONFIG.format(
                method=method,
                epsilon=arguments.epsilon,
                workers=arguments.workers,
                memory=arguments.memory_limit,
            )
        )
        timings, start = Timings(), time.perf_counter()
        reporter = Tee(timings, JsonLines(sys.stderr))
        with _watched(Path(folder)) as peaks:
            manifest = release(load_config(file), reporter).manifest
        seconds = time.perf_counter() - start
    projection = manifest.post_processing
    return {
        "method": method,
        "n": arguments.n,
        "sigma": manifest.mechanism.sigma,
        "seconds": round(seconds, 1),
        **{f"seconds_{stage}": value for stage, value in timings.seconds.items()},
        **peaks,
        "noisy_dtype": manifest.noisy.dtype,
        "products": projection.products,
        "iterations": projection.iterations,
        "rank": projection.rank,
        "converged": projection.converged,
    }


@contextmanager
def _watched(folder: Path) -> Iterator[dict[str, int]]:
    """Highest memory of any process below this one, and of the folder's files, in MiB."""
    peaks = {"peak_process_mib": 0, "peak_disk_mib": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            for process in psutil.Process().children(recursive=True):
                try:
                    held = process.memory_info().rss >> 20
                except psutil.Error:
                    continue
                peaks["peak_process_mib"] = max(peaks["peak_process_mib"], held)
            peaks["peak_disk_mib"] = max(peaks["peak_disk_mib"], _stored(folder) >> 20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _stored(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def clustered(n: int, d: int) -> np.ndarray:
    """Unit vectors around 64 centres."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(64, d))[random.integers(64, size=n)]
    rows = rows + 0.5 * random.normal(size=(n, d))
    return (rows / np.linalg.norm(rows, axis=1)[:, None]).astype(np.float32)


def timed_precisions(n: int, columns: int, workers: int) -> dict[str, Any]:
    """Least seconds of a product with blocks of each type, and their ratios to float32."""
    triangle = Triangle(n, automatic_block_side(n))
    cluster = Cluster(workers=workers, memory_limit="8GiB")
    with tempfile.TemporaryDirectory() as name, open_cluster(cluster, Path(name)) as client:
        seconds = {
            precision: _seconds_with(client, Path(name), triangle, columns, precision)
            for precision in ("float32", "int16", "int8")
        }
    return {
        "n": n,
        "columns": columns,
        "workers": workers,
        **{f"seconds_{name}": round(value, 3) for name, value in seconds.items()},
        **{
            f"{name}_to_float32": round(seconds[name] / seconds["float32"], 2)
            for name in ("int16", "int8")
        },
    }


def _seconds_with(
    client: Client, folder: Path, triangle: Triangle, columns: int, precision: Precision
) -> float:
    own = folder / precision
    own.mkdir()
    path = noisy_store(own, triangle, choose_encoding(1.0, precision))
    threads = sum(client.nthreads().values())
    algebra = ClusterPanels(client, own, row_ranges(triangle.n, threads), threads)
    # Workers hold the blocks of one store, and drop those of the type before.
    operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, 6 * 2**30), triangle)
    return least_seconds(operator, algebra.start(columns), REPETITIONS)


def least_seconds(operator: ClusterOperator, panel: Any, repetitions: int) -> float:
    """Least seconds of a product with ``panel``, once the workers hold the blocks."""
    operator.matmat(panel)
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        operator.matmat(panel)
        times.append(time.perf_counter() - start)
    return min(times)


def noisy_store(folder: Path, triangle: Triangle, encoding: Encoding) -> Path:
    """A store whose blocks all hold the same noise of standard deviation 1."""
    path = folder / "noisy.zarr"
    blocks.create_store(path, triangle, encoding)
    block = np.random.default_rng(0).normal(size=triangle.shape).astype(np.float32)
    for index in range(triangle.count):
        rows, columns = triangle.region(index)
        part = block[: rows.stop - rows.start, : columns.stop - columns.start]
        blocks.write_block(path, triangle, index, part)
    return path


if __name__ == "__main__":
    main()
