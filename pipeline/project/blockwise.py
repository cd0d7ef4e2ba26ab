"""The projection of a noisy matrix that fits no worker: the blockwise methods on the cluster.

The driver holds k × k arrays and vectors of n numbers. Panels and checkpoints lie in a work folder
of the run; the factor is written to the projection's store by tasks, rows by rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.errors import ConfigurationError
from pipeline.plan.geometry import Triangle
from pipeline.plan.shares import row_ranges
from pipeline.project.checkpoint import Checkpoints, read_checkpoint, sweep
from pipeline.project.dense import (
    ProjectionSummary,
    ProjectJob,
    begin_projection,
    finish_projection,
    load_projection,
)
from pipeline.project.operator import ClusterOperator, NoisyBlocks, box_correction
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import ClusterPanel, ClusterPanels
from pipeline.project.residual_pace import ResidualPace
from pipeline.storage import arrays
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import PROJECTION_STORE, SOLVER_CHOICE
from scoreshield.manifest.build import describe_projection
from scoreshield.manifest.schema import PostProcessing
from scoreshield.mechanisms.released import released_factor
from scoreshield.projection import METHODS
from scoreshield.projection.blockwise.problem import BlockwiseProblem, Choice
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import (
    ROW_SCALING,
    Iteration,
    Plain,
    Projection,
    rows_within_unit_ball,
)
from scoreshield.projection.solution import Solution


@dataclass(frozen=True)
class FinishedIteration:
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


def project_blockwise(
    client: Client,
    job: ProjectJob,
    work: Path,
    cache_bytes: int,
    progress: Callable[[FinishedIteration], None],
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
        form = METHODS[job.method].blockwise
        if form is None:
            raise ConfigurationError(f"method {job.method!r} has no blockwise form")
        algebra, problem = posed(client, job, work, cache_bytes, progress, multiplied)
        finished = save_solution(algebra, job, form.solve(problem))
    shutil.rmtree(work, ignore_errors=True)
    return finished


def posed(
    client: Client,
    job: ProjectJob,
    work: Path,
    cache_bytes: int,
    progress: Callable[[FinishedIteration], None],
    multiplied: Callable[[int], None] | None,
) -> tuple[ClusterPanels, BlockwiseProblem[ClusterPanel]]:
    """The home of the panels, and what a solver is given.

    Parameters
    ----------
    client : of the cluster
    job : what to project, and how
    work : folder for panels and checkpoints, in the run directory
    cache_bytes : most bytes of noisy blocks that a worker holds
    progress, multiplied : as for :func:`project_blockwise`
    """
    purpose = purpose_of(job)
    found = read_checkpoint(make_private(work), purpose)
    sweep(work, found)
    # A state that was stored in other row ranges goes on in those.
    ranges = row_ranges(job.triangle.n, job.threads) if found is None else found.ranges
    algebra = ClusterPanels(client, work, ranges, job.threads)

    def product_done() -> None:
        if multiplied is not None:
            multiplied(operator.bytes_read)

    def watched(tolerance: float) -> Callable[[Iteration], None]:
        pace = ResidualPace(tolerance)
        return lambda step: progress(
            FinishedIteration(step, operator.bytes_read, pace.seconds_left(step.residual))
        )

    source = NoisyBlocks(job.noisy, job.triangle, cache_bytes)
    operator = ClusterOperator(algebra, source, job.triangle, multiplied=product_done)
    rank = job.rank if isinstance(job.rank, int) else None
    return algebra, BlockwiseProblem(
        operator=operator,
        algebra=algebra,
        request=ProjectionRequest(job.sigma, job.tolerance, job.max_iterations, rank),
        box_correction=partial(box_correction, algebra, job.triangle, multiplied=product_done),
        watched=watched,
        decided=partial(_decided_once, work / SOLVER_CHOICE),
        checkpoint=Checkpoints(work, purpose, algebra).save,
        reached=None if found is None else found.state(algebra),
    )


def purpose_of(job: ProjectJob) -> dict[str, Any]:
    """What a state depends on; one of another purpose is not gone on from."""
    return {
        "method": job.method,
        "sigma": job.sigma,
        "tolerance": job.tolerance,
        "rank": job.rank,
    }


def _decided_once(path: Path, decide: Callable[[], Choice]) -> Mapping[str, Any]:
    """A decision that is kept, so that a resumed run goes on with it."""
    if not path.exists():
        write_atomically(path, json.dumps(decide()).encode())
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def save_solution(
    algebra: ClusterPanels, job: ProjectJob, solution: Solution[ClusterPanel]
) -> ProjectionSummary:
    """Store factor and diagonal, one task for each block row, and the summary."""
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
