"""How perturb and one product scale: from one worker to two, and from n to 4n.

Each worker has one thread and one BLAS thread. What the machine itself gives a second process is
measured beside it: two processes that multiply matrices in their caches and do nothing else, which
is the most that any speed-up on it can be. Repetitions go round all measurements, so that a busy
machine slows each of them, and the least seconds of each count. Blocks of a product are held by
their workers; clusters are fresh, their start and end left out.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --n 5000 10000 20000 --repeat 2
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from blockwise import least_seconds, noisy_store
from command_line import parser
from perturb import GALLERY, make_inputs, perturb_stage
from threadpoolctl import threadpool_limits

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import automatic_block_side
from pipeline.plan.shares import row_ranges
from pipeline.project.operator import ClusterOperator, NoisyBlocks
from pipeline.project.panel_store import ClusterPanels
from scoreshield.noise.encoding import choose_encoding

MEMORY_LIMIT = 6 * 2**30
PRODUCTS = 3
GEMM_SIDE, GEMM_SECONDS = 512, 1.0

Case = tuple[str, int, int]
"""What is measured, n, and workers."""


def main() -> None:
    """One JSON object: least seconds, speed-ups, exponents, and the machine's own ratio."""
    arguments = parser(
        __doc__,
        n=(
            [10_000, 20_000, 40_000],
            "records; growth from first to last, speed-up at the second",
        ),
        d=(128, "features"),
        columns=(256, "of the panel of a product"),
        repeat=(3, "repetitions"),
    ).parse_args()
    print(json.dumps(measured(arguments), indent=1))


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Least seconds of each case over all rounds, and what follows from them."""
    small, middle, large = arguments.n
    sizes = [(small, 2), (middle, 1), (middle, 2), (large, 2)]
    seconds: dict[Case, float] = defaultdict(lambda: math.inf)
    alone = together = 0.0
    for _ in range(arguments.repeat):
        for n, workers in sizes:
            perturbing = perturb_seconds(n, arguments.d, workers)
            multiplying = product_seconds(n, arguments.columns, workers)
            for case, taken in (("perturb", perturbing), ("product", multiplying)):
                seconds[case, n, workers] = min(seconds[case, n, workers], taken)
        one, two = gemm_rates()
        alone, together = max(alone, one), max(together, two)
    result: dict[str, Any] = {
        "n": arguments.n,
        "d": arguments.d,
        "columns": arguments.columns,
        "repeat": arguments.repeat,
        "load": [round(load, 1) for load in os.getloadavg()],
        "gemm_two_processes_to_one": round(together / alone, 2),
    }
    for case in ("perturb", "product"):
        growth = seconds[case, large, 2] / seconds[case, small, 2]
        result[case] = {
            "seconds": {
                f"n {n}, {workers} workers": round(seconds[case, n, workers], 3)
                for n, workers in sizes
            },
            "one_worker_to_two": round(seconds[case, middle, 1] / seconds[case, middle, 2], 2),
            "exponent": round(math.log(growth) / math.log(large / small), 2),
        }
    return result


def perturb_seconds(n: int, d: int, workers: int) -> float:
    """One perturb stage, its blocks stored as a release that projects them stores them."""
    with tempfile.TemporaryDirectory() as name:
        plan = make_inputs(Path(name), n, d)
        gallery, encoding = Path(name) / GALLERY, choose_encoding(plan.mechanism.sigma)
        stage = perturb_stage(Path(name), gallery, plan, workers, encoding=encoding)
        return stage.wall_seconds


def product_seconds(n: int, columns: int, workers: int) -> float:
    """Least seconds of a product, once its workers hold the blocks."""
    triangle = Triangle(n, automatic_block_side(n))
    cluster = Cluster.model_validate({"workers": workers, "memory_limit": MEMORY_LIMIT})
    with tempfile.TemporaryDirectory() as name, open_cluster(cluster, Path(name)) as client:
        path = noisy_store(Path(name), triangle, choose_encoding(1.0, "auto"))
        algebra = ClusterPanels(client, Path(name), row_ranges(n, workers), workers)
        operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, MEMORY_LIMIT), triangle)
        return least_seconds(operator, algebra.start(columns), PRODUCTS)


def gemm_rates() -> tuple[float, float]:
    """Products a second of one process, and of two at the same time, one BLAS thread each."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawned) as pool:
        # Both processes are there before anything is timed.
        list(pool.map(gemm_rate, [0.2, 0.2]))
        one = pool.submit(gemm_rate, GEMM_SECONDS).result()
        two = sum(pool.map(gemm_rate, [GEMM_SECONDS, GEMM_SECONDS]))
    return one, two


def gemm_rate(duration: float) -> float:
    """Products a second of this process for so many seconds."""
    left = np.ones((GEMM_SIDE, GEMM_SIDE), dtype=np.float32)
    right, out = left.copy(), np.empty_like(left)
    with threadpool_limits(1):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < duration:
            np.matmul(left, right, out=out)
            count += 1
        return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
