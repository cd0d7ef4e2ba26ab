"""The exact projection against other people's solvers of the nearest correlation matrix.

All of them get the same noisy Gram matrix. X* is the exact projection, from the dense Newton
method run to 1e-10; every other result is described by its distance ‖X − X*‖_F / ‖X*‖_F and by its
CPU time over that of `nearest` by products, run to where its certificate, the relative duality gap,
is below 1e-6.

- CVXPY with SCS, a general solver of semidefinite programs, at its tolerance 1e-4.
- skfolio's Higham iteration (alternating projections with Dykstra's correction), until it is as
  near as SCS was, or as `nearest` where SCS is left out: iterations are counted here with the same
  recurrence, and the library's own time of one iteration is multiplied by their number.

    OPENBLAS_NUM_THREADS=1 python benchmarks/nearest_solvers.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/nearest_solvers.py --quick
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from command_line import parser
from projection import by_cvxpy, clean_and_noisy, cpu_time, relative_distance

from scoreshield.projection.blockwise.single_precision import nearest_in_memory
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.operator import DenseOperator
from scoreshield.projection.solution import in_memory

TOLERANCE = 1e-6
"""Of ``nearest``: leaves a gap below 1e-6, and a distance below that of SCS."""
MOST_HIGHAM_ITERATIONS = 400
TIMED_HIGHAM_ITERATIONS = 3


def main() -> None:
    arguments = parser(
        __doc__,
        n=(2000, "records"),
        sigma=([0.1, 1.0, 5.0], "of the noise"),
        quick=(False, "without SCS, which takes minutes"),
    ).parse_args()
    for sigma in arguments.sigma:
        print(json.dumps(compared(arguments.n, sigma, not arguments.quick)), flush=True)


def compared(n: int, sigma: float, scs: bool) -> dict[str, Any]:
    """Distances and ratios of CPU time on one noisy Gram matrix of n records."""
    clean, noisy = clean_and_noisy(n, sigma)
    operator = DenseOperator(noisy)
    exact_seconds, exact = cpu_time(lambda: nearest_correlation(operator, tolerance=1e-10))
    seconds, solution = cpu_time(
        lambda: nearest_in_memory(operator, tolerance=TOLERANCE, max_iterations=100)
    )
    target = exact.gram()
    own = relative_distance(in_memory(solution).gram(), target)
    result: dict[str, Any] = {
        "n": n,
        "sigma": sigma,
        "nearest_seconds": round(seconds, 2),
        "nearest_distance": own,
        "nearest_gap": solution.certificate.relative_gap,
        "products": solution.products,
        "dense_newton_over_nearest": round(exact_seconds / seconds, 1),
    }
    wanted = own
    if scs:
        scs_seconds, found = cpu_time(lambda: by_cvxpy(noisy))
        wanted = relative_distance(found, target)
        result |= {"scs_over_nearest": round(scs_seconds / seconds, 1), "scs_distance": wanted}
    iterations, reached = higham_iterations(noisy, target, wanted)
    higham = iterations * skfolio_iteration_seconds(noisy)
    return result | {
        "skfolio_over_nearest": round(higham / seconds, 1),
        "skfolio_iterations": iterations,
        "skfolio_distance": reached,
        "error_of_nearest": relative_distance(target, clean),
    }


def higham_iterations(noisy: np.ndarray, target: np.ndarray, wanted: float) -> tuple[int, float]:
    """Steps of Higham's iteration to a distance from the exact projection, and that distance."""
    X = noisy.copy()
    np.fill_diagonal(X, 1.0)
    correction = np.zeros_like(X)
    number, reached = 0, float("inf")
    while reached > wanted and number < MOST_HIGHAM_ITERATIONS:
        number += 1
        shifted = X - correction
        values, vectors = np.linalg.eigh(shifted)
        positive = vectors[:, values > 0]
        X = (positive * values[values > 0]) @ positive.T
        correction = X - shifted
        np.fill_diagonal(X, 1.0)
        reached = relative_distance(X, target)
    return number, reached


def skfolio_iteration_seconds(noisy: np.ndarray) -> float:
    """CPU seconds of one iteration of the library itself, which gives up after the timed ones."""
    from skfolio.utils.stats import cov_nearest  # type: ignore[import-not-found]

    matrix = noisy.copy()
    np.fill_diagonal(matrix, 1.0)

    def give_up() -> None:
        try:
            cov_nearest(matrix, higham=True, higham_max_iteration=TIMED_HIGHAM_ITERATIONS)
        except ValueError:
            return

    return cpu_time(give_up)[0] / TIMED_HIGHAM_ITERATIONS


if __name__ == "__main__":
    main()
