"""Milliseconds that privacy adds to one query of a service, on a gallery prepared once.

Three things are timed in turn for each of many different queries: the exact inner products alone
(the held integer rows times the query), the whole release of the same query (checks, inner
products, correctly rounded noise, clipping, manifest), and the products plus NumPy normals, which
is what a service without these rules would do. The overhead is the median of the differences query
by query, so that a busy machine slows both sides; the processor's time is reported beside the wall
clock's. Float32 inner products, which are not exact, are a further yardstick.

    python benchmarks/scores_service.py
    python benchmarks/scores_service.py --records 1000000 --features 128 --json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from command_line import JSON, parser
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from scoreshield import PreparedGallery, release_scores
from scoreshield.arithmetic.fixedpoint import exact_products, to_fixed, to_integers

Times = tuple[float, float]


def main() -> None:
    arguments = parser(
        __doc__,
        records=(100_000, "of the gallery"),
        features=(256, "of a record"),
        queries=(101, "queries timed"),
        epsilon=(8.0, "of a query"),
        json=JSON,
    ).parse_args()
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((arguments.records, arguments.features), dtype=np.float32)
    queries = generator.standard_normal((arguments.queries + 3, arguments.features))
    queries /= np.linalg.norm(queries, axis=1)[:, None]
    fixed = to_fixed(rows)
    integers, gallery = to_integers(fixed), PreparedGallery(rows)
    del rows
    runs = [
        measure_query(query, gallery, integers, fixed, arguments.epsilon, generator)
        for query in queries
    ]
    report(arguments, runs[3:])


def measure_query(
    query: NDArray[np.float64],
    gallery: PreparedGallery,
    integers: NDArray[np.float64],
    fixed: NDArray[np.float32],
    epsilon: float,
    generator: np.random.Generator,
) -> dict[str, Times]:
    """Wall and processor milliseconds of each contender for one query."""
    exact_query = to_integers(to_fixed(query[None]))
    single = query.astype(np.float32)

    def plain_noise() -> Any:
        scores = exact_products(exact_query, integers)[0] * 2.0**-48
        scores += generator.standard_normal(gallery.n)
        return np.clip(scores, -1, 1).astype(np.float32)

    return {
        "products": milliseconds(lambda: exact_products(exact_query, integers)),
        "release": milliseconds(
            lambda: release_scores(gallery, query, epsilon=epsilon, delta=1e-6)
        ),
        "numpy": milliseconds(plain_noise),
        "float32": milliseconds(lambda: fixed @ single),
    }


def milliseconds(call: Callable[[], Any]) -> Times:
    """Wall and processor time of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3


def report(arguments: argparse.Namespace, runs: list[dict[str, Times]]) -> None:
    result: dict[str, Any] = {}
    for which, clock in enumerate(("wall", "processor")):
        for name in ("products", "release", "numpy", "float32"):
            result[f"{name}_{clock}_ms"] = statistics.median(run[name][which] for run in runs)
        for name in ("release", "numpy"):
            result[f"{name}_overhead_{clock}_ms"] = statistics.median(
                run[name][which] - run["products"][which] for run in runs
            )
    result = {name: round(value, 2) for name, value in result.items()}
    result |= {
        "records": arguments.records,
        "features": arguments.features,
        "queries": arguments.queries,
        "blas_threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
        "machine": platform.machine(),
        "numpy_version": np.__version__,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{arguments.records} records of {arguments.features} features, one query; milliseconds")
    print(f"{'':34}{'wall':>8}{'processor':>12}")
    for name, words in (
        ("products", "exact inner products"),
        ("release", "release_scores"),
        ("release_overhead", "  above the products"),
        ("numpy", "products, NumPy normals, clip"),
        ("numpy_overhead", "  above the products"),
        ("float32", "float32 products, not exact"),
    ):
        wall, processor = result[f"{name}_wall_ms"], result[f"{name}_processor_ms"]
        print(f"{words:34}{wall:8.2f}{processor:12.2f}")


if __name__ == "__main__":
    main()
