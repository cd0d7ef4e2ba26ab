"""Product-only projections against the dense ones: products, columns, agreement and time.

Rows are random unit vectors of 32 numbers, or clusters, plus mirrored Gaussian noise. The dense
answer is computed in the same run; for ``aap`` one dense eigendecomposition is timed and multiplied
by the iteration count of the paper's form. Compare ratios between machines, not seconds.

    python benchmarks/projection_blockwise.py nearest --n 1000 --sigma 0.1 1 10 100 1000
    python benchmarks/projection_blockwise.py aap --n 2000 --sigma 1
    python benchmarks/projection_blockwise.py shrink --n 1000 --sigma 0.02 0.2 1 5 50
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from command_line import parser

from scoreshield.projection import DenseOperator
from scoreshield.projection.blockwise.aap import aap_blockwise
from scoreshield.projection.blockwise.box_correction import BoxCorrection
from scoreshield.projection.blockwise.nearest import nearest_blockwise
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.blockwise.shrink import shrink_blockwise
from scoreshield.projection.blockwise.single_precision import SinglePrecision
from scoreshield.projection.dense.eigen import full_spectrum
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.dense.shrink import eigenvalue_shrinkage
from scoreshield.projection.operator import FloatArray
from scoreshield.projection.solution import Solution, in_memory

PAPER_ITERATIONS = 150
"""Iterations of weight 1/2 and relaxation 1 to 1e-4 at n = 10,000, measured elsewhere."""


def main() -> None:
    made = parser(
        __doc__,
        n=(1000, "records"),
        sigma=([0.1, 1.0, 10.0], "of the noise"),
        clusters=(0, "0 for no clusters"),
    )
    made.add_argument("method", choices=["nearest", "aap", "shrink"])
    arguments = made.parse_args()
    measure = {"nearest": nearest, "aap": aap, "shrink": shrink}[arguments.method]
    rows = gallery(arguments.n, arguments.clusters)
    for sigma in arguments.sigma:
        noise = np.triu(np.random.default_rng(0).normal(size=(arguments.n,) * 2), 1) * sigma
        result = measure(rows @ rows.T, noise + noise.T, sigma)
        print(json.dumps({"method": arguments.method, "n": arguments.n, "sigma": sigma, **result}))


def nearest(clean: FloatArray, noise: FloatArray, sigma: float) -> dict[str, Any]:
    operator = DenseOperator(clean + noise)
    dense, dense_seconds = timed(lambda: nearest_correlation(operator, tolerance=1e-9))
    solution, seconds = timed(
        lambda: nearest_blockwise(operator, ArrayPanels(operator.n), tolerance=2e-5)
    )
    certificate = solution.certificate
    return {
        **common(solution, seconds, dense_seconds),
        "dense_rank": dense.rank,
        "relative_difference": relative(in_memory(solution).gram(), dense.gram()),
        "relative_gap": certificate.relative_gap,
        "smallest_dual_eigenvalue": certificate.dual_smallest_eigenvalue,
    }


def aap(clean: FloatArray, noise: FloatArray, sigma: float) -> dict[str, Any]:
    noisy = clean + noise
    n, array = len(noisy), DenseOperator(noisy).array
    _, one = timed(lambda: full_spectrum(array))
    solution, seconds = timed(
        lambda: aap_blockwise(SinglePrecision(array), ArrayPanels(n, np.float32), BoxCorrection)
    )
    return {
        **common(solution, seconds, PAPER_ITERATIONS * one),
        "iterations": len(solution.history),
        "dense_eigendecomposition_seconds": round(one, 2),
        "error": relative(in_memory(solution).gram(), clean),
        "linear_rate": solution.linear_rate,
    }


def shrink(clean: FloatArray, noise: FloatArray, sigma: float) -> dict[str, Any]:
    operator = DenseOperator(clean + noise)
    dense, dense_seconds = timed(lambda: eigenvalue_shrinkage(operator, sigma=sigma))
    solution, seconds = timed(
        lambda: shrink_blockwise(operator, ArrayPanels(operator.n), sigma=sigma)
    )
    exact = nearest_correlation(operator, tolerance=1e-4)
    return {
        **common(solution, seconds, dense_seconds),
        "rule": solution.parameters["rule"],
        "relative_difference": relative(in_memory(solution).gram(), dense.gram()),
        "error": relative(in_memory(solution).gram(), clean),
        "error_of_nearest": relative(exact.gram(), clean),
        "error_of_identity": relative(np.eye(operator.n), clean),
    }


def common(solution: Solution[Any], seconds: float, dense_seconds: float) -> dict[str, Any]:
    return {
        "products": solution.products,
        "columns": solution.parameters.get("columns"),
        "rank": solution.rank,
        "converged": solution.converged,
        "seconds": round(seconds, 2),
        "dense_seconds": round(dense_seconds, 2),
        "ratio": round(dense_seconds / seconds, 1),
    }


def gallery(n: int, clusters: int) -> FloatArray:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(n, 32))
    if clusters:
        rows = 0.6 * rows + rng.normal(size=(clusters, 32))[rng.integers(0, clusters, n)]
    unit: FloatArray = rows / np.linalg.norm(rows, axis=1)[:, None]
    return unit


def relative(found: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
