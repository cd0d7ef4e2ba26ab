"""The projection of a noisy matrix that fits no worker: the blockwise methods on the cluster.

The driver holds k × k arrays and vectors of n numbers. Panels and checkpoints lie in a work folder
of the run; the factor is written to the projection's store by tasks, rows by rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.plan.geometry import Triangle
from pipeline.project.checkpoint import Checkpoints, State, read_checkpoint, sweep
from pipeline.project.dense import (
    ProjectionSummary,
    ProjectJob,
    begin_projection,
    finish_projection,
    load_projection,
)
from pipeline.project.operator import ClusterOperator, NoisyBlocks, box_correction
from pipeline.project.pace import Pace
from pipeline.project.panel_file import PanelFile, row_ranges
from pipeline.project.panel_store import ClusterPanel, ClusterPanels
from pipeline.storage import arrays
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import PROJECTION_STORE, SOLVER_CHOICE
from scoreshield.manifest.build import describe_projection
from scoreshield.manifest.schema import PostProcessing
from scoreshield.mechanisms.released import released_factor
from scoreshield.projection.blockwise.aap import AapState, ClosingState, aap_blockwise
from scoreshield.projection.blockwise.methods import LINEAR_SAFETY, estimated_risks
from scoreshield.projection.blockwise.nearest import NearestState, nearest_blockwise
from scoreshield.projection.blockwise.panels import CountedProducts
from scoreshield.projection.blockwise.shrink import HandoverState, ShrinkState, shrink_blockwise
from scoreshield.projection.certificate import Certificate
from scoreshield.projection.dense.auto import METHOD as AUTO
from scoreshield.projection.dense.auto import least_of
from scoreshield.projection.result import (
    ROW_SCALING,
    Iteration,
    Plain,
    Projection,
    rows_within_unit_ball,
)
from scoreshield.projection.solution import Solution


@dataclass(frozen=True)
class Progress:
    """What there is to tell after an iteration.

    Attributes
    ----------
    step : the iteration
    bytes_read : bytes of noisy blocks read from storage in this attempt
    seconds_left : at the recent pace, where that can be told
    """

    step: Iteration
    bytes_read: int
    seconds_left: float | None


class Solve:
    """One projection on a cluster: its matrix, its panels, its checkpoints.

    Parameters
    ----------
    client : of the cluster
    job : what to project, and how
    work : folder for panels and checkpoints, in the run directory
    cache_bytes : most bytes of noisy blocks that a worker holds
    progress : called after each iteration
    multiplied : called after each product with the bytes of noisy blocks read so far
    """

    def __init__(
        self,
        client: Client,
        job: ProjectJob,
        work: Path,
        cache_bytes: int,
        progress: Callable[[Progress], None],
        multiplied: Callable[[int], None] | None = None,
    ) -> None:
        self.job = job
        self.work = make_private(work)
        purpose = purpose_of(job)
        found = read_checkpoint(work, purpose)
        sweep(work, found)
        # A state that was stored in other row ranges goes on in those.
        ranges = row_ranges(job.triangle.n, job.threads) if found is None else found.ranges
        self.algebra = ClusterPanels(client, work, ranges, job.threads)
        source = NoisyBlocks(job.noisy, job.triangle, cache_bytes)
        self.operator = ClusterOperator(
            self.algebra, source, job.triangle, multiplied=self.product_done
        )
        self.reached: State | None = None if found is None else found.state(self.algebra)
        self.checkpoint = Checkpoints(work, purpose, self.algebra).save
        self._progress, self._multiplied = progress, multiplied

    def product_done(self) -> None:
        """Tell of a product, with the noisy matrix or with an iterate."""
        if self._multiplied is not None:
            self._multiplied(self.operator.bytes_read)

    def watched(self, tolerance: float) -> Callable[[Iteration], None]:
        """A function to call with each iteration of a solver that stops at ``tolerance``."""
        pace = Pace(tolerance)

        def report(step: Iteration) -> None:
            left = pace.seconds_left(step.residual)
            self._progress(Progress(step, self.operator.bytes_read, left))

        return report


def purpose_of(job: ProjectJob) -> dict[str, Any]:
    """What a state depends on; one of another purpose is not gone on from."""
    return {
        "method": job.method,
        "sigma": job.sigma,
        "tolerance": job.tolerance,
        "rank": job.rank,
    }


def project_blockwise(
    client: Client,
    job: ProjectJob,
    work: Path,
    cache_bytes: int,
    progress: Callable[[Progress], None],
    multiplied: Callable[[int], None] | None = None,
) -> ProjectionSummary:
    """Project the noisy matrix on the cluster and store factor and diagonal.

    A finished projection is kept; an interrupted one goes on from its last finished iteration.
    ``progress`` is called after each iteration; ``multiplied`` after each product, with the bytes
    of noisy blocks read so far: the first iteration alone may take dozens of products.

    Raises
    ------
    IntegrityFailure
        A noisy block or a panel is missing or damaged.
    RunFailed
        A task failed; the checkpoint is kept.
    """
    finished = load_projection(job.target)
    if finished is None:
        solve = Solve(client, job, work, cache_bytes, progress, multiplied)
        finished = save_solution(solve, METHODS[job.method](solve))
    shutil.rmtree(work, ignore_errors=True)
    return finished


def alternating(solve: Solve) -> Solution[ClusterPanel]:
    """``aap``."""
    job, reached = solve.job, solve.reached
    return aap_blockwise(
        solve.operator,
        solve.algebra,
        partial(box_correction, solve.algebra, job.triangle, multiplied=solve.product_done),
        tolerance=job.tolerance,
        max_iterations=job.max_iterations,
        rank=job.rank if isinstance(job.rank, int) else None,
        progress=solve.watched(job.tolerance),
        checkpoint=solve.checkpoint,
        resume_from=reached if isinstance(reached, AapState | ClosingState) else None,
    )


def nearest(solve: Solve) -> Solution[ClusterPanel]:
    """``nearest``."""
    tolerance = LINEAR_SAFETY * solve.job.tolerance
    return nearest_blockwise(
        solve.operator,
        solve.algebra,
        tolerance=tolerance,
        max_iterations=solve.job.max_iterations,
        progress=solve.watched(tolerance),
        checkpoint=solve.checkpoint,
        resume_from=solve.reached if isinstance(solve.reached, NearestState) else None,
    )


def shrinkage(solve: Solve) -> Solution[ClusterPanel]:
    """``shrink``."""
    job, reached = solve.job, solve.reached
    return shrink_blockwise(
        solve.operator,
        solve.algebra,
        sigma=job.sigma,
        tolerance=job.tolerance,
        max_iterations=job.max_iterations,
        progress=solve.watched(job.tolerance),
        checkpoint=solve.checkpoint,
        resume_from=reached if isinstance(reached, ShrinkState | HandoverState) else None,
    )


def least_risk(solve: Solve) -> Solution[ClusterPanel]:
    """``auto``: what was chosen is kept, so that a resumed run goes on with the same method."""
    path = solve.work / SOLVER_CHOICE
    if not path.exists():
        counted = CountedProducts(solve.operator)
        chosen, parameters = least_of(estimated_risks(counted, solve.algebra, solve.job.sigma))
        choice = {"chosen": chosen, "parameters": parameters, "products": counted.products}
        write_atomically(path, json.dumps(choice).encode())
    choice = json.loads(path.read_text())
    solution = _CHOSEN[choice["chosen"]](solve)
    parameters = {**solution.parameters, **choice["parameters"]}
    return replace(
        solution,
        method=AUTO.name,
        parameters=parameters,
        products=solution.products + choice["products"],
    )


def identity(solve: Solve) -> Solution[ClusterPanel]:
    """The identity matrix, which tells nothing."""
    return Solution(
        factor=solve.algebra.start(0),
        diagonal=np.ones(solve.algebra.n),
        method="identity",
        certificate=Certificate(smallest_eigenvalue_bound=1.0, diagonal_residual=1.0),
        parameters={},
        history=(),
        products=0,
        converged=True,
    )


_CHOSEN: dict[str, Callable[[Solve], Solution[ClusterPanel]]] = {
    "shrink": shrinkage,
    "nearest": nearest,
    "identity": identity,
}

METHODS: dict[str, Callable[[Solve], Solution[ClusterPanel]]] = {
    "aap": alternating,
    "auto": least_risk,
    "nearest": nearest,
    "shrink": shrinkage,
}
"""The methods that have a blockwise form."""


def save_solution(solve: Solve, solution: Solution[ClusterPanel]) -> ProjectionSummary:
    """Store factor and diagonal, one task for each block row, and the summary."""
    job, algebra = solve.job, solve.algebra
    folder = begin_projection(job.target, (job.triangle.n, solution.rank), job.triangle.side)
    rows = StoredRows(folder / PROJECTION_STORE, algebra.stored(solution.factor), job.triangle)
    block_rows = range(job.triangle.per_side)
    smallest = min(run_tasks(algebra.client, "store-factor", store_rows, rows, block_rows))
    return finish_projection(folder, job.target, described(solution, smallest))


@dataclass(frozen=True)
class StoredRows:
    """Where a factor is, and the store that it is copied to in block rows of ``triangle``."""

    store: Path
    factor: PanelFile
    triangle: Triangle


def store_rows(job: StoredRows, index: int) -> float:
    """Write one block row of factor and diagonal; returns the smallest diagonal entry."""
    rows = job.triangle.span(index)
    scaled = rows_within_unit_ball(job.factor.read(rows).astype(np.float64))
    factor, diagonal = released_factor(scaled)
    arrays.open_for_writing(job.store, "factor")[rows, :] = factor
    arrays.open_for_writing(job.store, "diagonal")[rows] = diagonal
    return float(diagonal.min())


def described(solution: Solution[Any], smallest_diagonal: float) -> PostProcessing:
    """What a manifest says of a solution whose stored diagonal has that smallest entry."""
    n, rank = solution.factor.shape
    # As `smallest_eigenvalue_bound`, for the arrays that are published.
    rounding = float(n * (rank + 2) * np.finfo(np.float64).eps)
    certificate = replace(
        solution.certificate, smallest_eigenvalue_bound=smallest_diagonal - rounding
    )
    parameters: dict[str, Plain] = {**solution.parameters, "post_step": ROW_SCALING}
    return describe_projection(
        Projection(
            factor=None,
            diagonal=None,
            method=solution.method,
            rank=rank,
            iterations=len(solution.history),
            products=solution.products,
            history=tuple(solution.history),
            certificate=certificate,
            parameters=parameters,
            converged=solution.converged,
            feasible=True,
        )
    )
