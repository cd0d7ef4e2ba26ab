"""The projections in memory, in units of one dense eigendecomposition timed in the same run.

G is the Gram matrix of random unit rows (d = 32) plus symmetric noise. Every method works on the
same G; ``nearest`` is run to its full accuracy. Each result is measured twice: by its distance to
that exact projection, which only says how well a solver solves the same problem, and by its error
against the clean Gram matrix, which is what a release is for. CVXPY with SCS, a general solver of
semidefinite programs, joins with --cvxpy where both are installed; they are no dependency of the
project.

Time is CPU time of the process; keep BLAS to one thread to compare with other machines.

    OPENBLAS_NUM_THREADS=1 python benchmarks/projection.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/projection.py --n 500 --sigma 5 --cvxpy --json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from command_line import JSON, parser
from numpy.typing import NDArray

from scoreshield.projection import Projection, project

FEATURES = 32
EIGH_REPETITIONS = 3
TOLERANCES = {"nearest": 1e-10, "aap": 1e-4}
SCS_TOLERANCE = 1e-4

Matrix = NDArray[np.float64]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One method on one matrix."""

    n: int
    method: str
    cpu_seconds: float
    over_eigh: float
    """CPU time over that of one ``numpy.linalg.eigh`` of the same matrix."""
    eigendecompositions: int | None
    rank: int | None
    converged: bool
    distance: float
    """‖X − X*‖_F / ‖X*‖_F to the exact projection X*."""
    error: float
    """‖X − S‖_F / ‖S‖_F to the clean Gram matrix S."""


def main() -> None:
    arguments = parser(
        __doc__,
        n=([500, 1000, 2000], "records"),
        sigma=(0.1, "noise a pair"),
        largest_aap=(1000, "largest n that aap runs at"),
        cvxpy=(False, "run CVXPY with SCS as well"),
        largest_cvxpy=(500, "largest n that SCS runs at"),
        json=JSON,
    ).parse_args()
    rows = [row for n in arguments.n for row in compared(n, arguments)]
    report(arguments, rows)


def compared(n: int, arguments: argparse.Namespace) -> list[Row]:
    """Every method on one noisy Gram matrix of n records."""
    clean, noisy = clean_and_noisy(n, arguments.sigma)
    unit = statistics.median(
        cpu_time(lambda: np.linalg.eigh(noisy))[0] for _ in range(EIGH_REPETITIONS)
    )
    methods = ["nearest", "shrink"] + ["aap"] * (n <= arguments.largest_aap)
    runs = [cpu_time(partial(run, noisy, method, arguments.sigma)) for method in methods]
    exact = runs[0][1].gram()
    rows = [
        Row(
            n=n,
            method=found.method,
            cpu_seconds=round(seconds, 2),
            over_eigh=round(seconds / unit, 1),
            eigendecompositions=found.history[-1].eigendecompositions if found.history else 1,
            rank=found.rank,
            converged=found.converged,
            distance=relative_distance(found.gram(), exact),
            error=relative_distance(found.gram(), clean),
        )
        for seconds, found in runs
    ]
    if arguments.cvxpy and n <= arguments.largest_cvxpy:
        seconds, solution = cpu_time(lambda: by_cvxpy(noisy))
        rows.append(
            Row(
                n=n,
                method="cvxpy + SCS",
                cpu_seconds=round(seconds, 2),
                over_eigh=round(seconds / unit, 1),
                eigendecompositions=None,
                rank=None,
                converged=True,
                distance=relative_distance(solution, exact),
                error=relative_distance(solution, clean),
            )
        )
    return rows


def clean_and_noisy(n: int, sigma: float) -> tuple[Matrix, Matrix]:
    """Cosines S of random unit rows, and S plus one N(0, σ²) draw a pair, both (n, n)."""
    generator = np.random.default_rng(n)
    rows = generator.standard_normal((n, FEATURES))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    clean = rows @ rows.T
    noise = np.triu(sigma * generator.standard_normal((n, n)), 1)
    return clean, clean + noise + noise.T


def run(noisy: Matrix, method: str, sigma: float) -> Projection:
    """One projection at the tolerance of ``TOLERANCES``."""
    return project(noisy, sigma=sigma, method=method, tolerance=TOLERANCES.get(method, 1e-4))


def by_cvxpy(noisy: Matrix) -> Matrix:
    """The same projection stated as a semidefinite program."""
    import cvxpy  # type: ignore[import-not-found]

    X = cvxpy.Variable(noisy.shape, PSD=True)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(X - noisy)), [cvxpy.diag(X) == 1])
    problem.solve(solver=cvxpy.SCS, eps_abs=SCS_TOLERANCE, eps_rel=SCS_TOLERANCE)
    if problem.status != cvxpy.OPTIMAL:
        raise SystemExit(f"SCS ended as {problem.status}, expected {cvxpy.OPTIMAL}")
    result: Matrix = X.value
    return result


def relative_distance(X: Matrix, Y: Matrix) -> float:
    """‖X − Y‖_F / ‖Y‖_F."""
    return float(np.linalg.norm(X - Y) / np.linalg.norm(Y))


def cpu_time(work: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def report(arguments: argparse.Namespace, rows: list[Row]) -> None:
    if arguments.json:
        print(
            json.dumps(
                {
                    "sigma": arguments.sigma,
                    "d": FEATURES,
                    "machine": platform.machine(),
                    "rows": [asdict(row) for row in rows],
                }
            )
        )
        return
    print(f"sigma = {arguments.sigma}, d = {FEATURES}")
    print("    n method         CPU s  / eigh  eigh  rank  distance    error")
    for row in rows:
        print(
            f"{row.n:5d} {row.method:12} {row.cpu_seconds:7.2f} {row.over_eigh:7.1f} "
            f"{shown(row.eigendecompositions):>5} {shown(row.rank):>5} "
            f"{row.distance:9.1e} {row.error:8.4f}{'' if row.converged else '  not converged'}"
        )


def shown(value: Any) -> str:
    """A figure, or a dash where a method has none."""
    return "-" if value is None else str(value)


if __name__ == "__main__":
    main()
