"""What a blockwise projection does, counted: products, columns, rounds, panel bytes, operations.

The methods foretell these numbers from sizes alone (`scoreshield/projection/foretold.py`). Their
constants come from this table: the solvers on stored panels as on a cluster, but in one process,
with the noisy matrix in memory. What was foretold stands beside what was counted, as foretold /
counted.

    python benchmarks/solver_work.py --n 1000 2000 --sigma 0.1 1 10 100 --methods shrink nearest aap
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from blockwise import clustered
from command_line import parser

from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import FLOAT32_BYTES
from pipeline.plan.shares import row_ranges
from pipeline.project import operator, panel_store
from pipeline.project.operator import ClusterOperator, box_correction
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import ClusterPanels, StoredTerm
from scoreshield.projection import METHODS
from scoreshield.projection.blockwise import subspace
from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.foretold import EIGENDECOMPOSITION_FLOPS, NoisySpectrum
from scoreshield.projection.request import ProjectionRequest

TOLERANCE = 1e-4
SIDE = 512


class OneProcess:
    """Stands in for a client: one thread, here."""

    def nthreads(self) -> dict[str, int]:
        return {"here": 1}


@dataclass(frozen=True)
class InMemory:
    """The noisy matrix as a source of blocks."""

    matrix: np.ndarray
    triangle: Triangle

    def scale(self) -> float:
        return 1.0

    def block(self, i: int, j: int, scratch: np.ndarray) -> tuple[np.ndarray, int]:
        return self.matrix[self.triangle.span(i), self.triangle.span(j)], 0


def main() -> None:
    """One JSON line for each size, noise and method."""
    arguments = parser(
        __doc__,
        n=([1000, 2000], "records"),
        d=(64, "features"),
        sigma=([0.1, 1.0, 10.0, 100.0], "of the noise"),
        methods=(["shrink", "nearest", "aap"], "of projection"),
    ).parse_args()
    for n in arguments.n:
        for sigma in arguments.sigma:
            for method in arguments.methods:
                print(json.dumps(counted(n, arguments.d, sigma, method)), flush=True)


def noisy_matrix(n: int, d: int, sigma: float) -> np.ndarray:
    """Cosines of clustered records with mirrored noise and unit diagonal, (n, n) float32."""
    rows = clustered(n, d)
    noise = np.triu(np.random.default_rng(1).normal(size=(n, n)).astype(np.float32), 1)
    noisy = rows @ rows.T + np.float32(sigma) * (noise + noise.T)
    np.fill_diagonal(noisy, 1.0)
    return noisy


def counted(n: int, d: int, sigma: float, method: str) -> dict[str, Any]:
    """The work of one projection."""
    triangle = Triangle(n, SIDE)
    source = InMemory(noisy_matrix(n, d, sigma), triangle)
    with tempfile.TemporaryDirectory() as folder, counting() as work:
        client: Any = OneProcess()
        algebra = ClusterPanels(client, Path(folder), row_ranges(n, 1), 1)
        noisy = ClusterOperator(algebra, source, triangle)
        problem = BlockwiseProblem(
            operator=noisy,
            algebra=algebra,
            request=ProjectionRequest(sigma, TOLERANCE, 500, None),
            box_correction=partial(box_correction, algebra, triangle),
            watched=lambda _: None,
            decided=lambda decide: decide(),
        )
        solution = METHODS[method].blockwise.solve(problem)
    return {
        "n": n,
        "d": d,
        "sigma": sigma,
        "method": method,
        "converged": solution.converged,
        "iterations": len(solution.history),
        "rank": solution.factor.shape[1],
        **{name: float(f"{count:.6g}") for name, count in sorted(work.items())},
        "foretold_to_counted": foretold_to_counted(n, d, sigma, method, work),
    }


def foretold_to_counted(
    n: int, d: int, sigma: float, method: str, work: Counter[str]
) -> dict[str, float]:
    """Ratios of what the plan of such a release foretells to what was counted."""
    foretold = METHODS[method].blockwise.work(NoisySpectrum(n, d, sigma))
    pairs = {
        "products": (foretold.products, work["products"]),
        "columns": (foretold.columns, work["columns"]),
        "rounds": (foretold.steps, work["rounds"]),
        "panel_bytes": (foretold.panel_numbers * FLOAT32_BYTES, work["panel_bytes"]),
        "panel_flops": (foretold.panel_flops, work["panel_flops"]),
        "driver_flops": (
            foretold.driver_flops,
            EIGENDECOMPOSITION_FLOPS * work["driver_cubes"],
        ),
    }
    return {name: round(one / max(1, other), 2) for name, (one, other) in pairs.items()}


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Run tasks here, one after the other, and count what they do."""
    work: Counter[str] = Counter()
    multiplying = False

    def here(_: Any, name: str, function: Any, jobs: Sequence[Any], places: Any = None) -> Any:
        nonlocal multiplying
        work["product_rounds" if multiplying else "rounds"] += 1
        return [function(job, index) for index, job in enumerate(jobs)]

    matmat, value = ClusterOperator.matmat, StoredTerm.value
    read, write = PanelFile.read, PanelFile.write
    inner_rows, eigh = panel_store.inner_rows, subspace.descending_eigh

    def counted_product(self: Any, panel: Any) -> Any:
        nonlocal multiplying
        # A deferred panel is evaluated for the product; that is a step, not part of it.
        self._algebra.stored(panel)
        k = panel.shape[1]
        stored = self._held is None
        work["products" if stored else "computed_products"] += 1
        work["columns" if stored else "computed_columns"] += k
        work["factor_columns"] += 0 if stored else self._held.shape[1]
        work["widest"] = max(work["widest"], k)
        multiplying = True
        try:
            return matmat(self, panel)
        finally:
            multiplying = False

    def counted_read(self: Any, rows: slice) -> Any:
        work["_" if multiplying else "panel_bytes"] += 4 * (rows.stop - rows.start) * self.columns
        return read(self, rows)

    def counted_write(self: Any, index: int, chunks: Any) -> Any:
        span = self.ranges.span(index)
        work["_" if multiplying else "panel_bytes"] += 4 * (span.stop - span.start) * self.columns
        return write(self, index, chunks)

    def counted_value(self: Any, rows: slice, first: int) -> Any:
        if isinstance(self.coefficients, np.ndarray):
            work["panel_flops"] += 2 * (rows.stop - rows.start) * self.coefficients.size
        return value(self, rows, first)

    def counted_inner(job: Any, index: int) -> Any:
        rows, left, right = job
        columns = left[0].columns * (left if right is None else right)[0].columns
        work["panel_flops"] += 2 * (rows.stop - rows.start) * columns
        return inner_rows(job, index)

    def counted_eigh(matrix: Any) -> Any:
        work["driver_cubes"] += len(matrix) ** 3
        return eigh(matrix)

    with ExitStack() as patched:
        for target, name, replacement in (
            (operator, "run_at_once", here),
            (panel_store, "run_at_once", here),
            (ClusterOperator, "matmat", counted_product),
            (PanelFile, "read", counted_read),
            (PanelFile, "write", counted_write),
            (StoredTerm, "value", counted_value),
            (panel_store, "inner_rows", counted_inner),
            (subspace, "descending_eigh", counted_eigh),
        ):
            patched.enter_context(patch.object(target, name, replacement))
        yield work
    del work["_"]


if __name__ == "__main__":
    main()
