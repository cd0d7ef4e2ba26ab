"""The projection of the noisy blocks, in one task on one worker.

Reads noisy blocks and nothing else, so that what it makes is post-processing of them. The result is
a folder with ``projection.zarr`` (``factor``, ``diagonal``) and ``summary.json``; it gets its name
in one rename, so that a folder of that name is a finished projection.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray
from pydantic import ValidationError
from threadpoolctl import threadpool_limits

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.storage import arrays
from pipeline.storage.blocks import read_block
from pipeline.storage.durable import sync, sync_tree, write_atomically
from pipeline.storage.layout import PROJECTION_STORE, PROJECTION_SUMMARY
from pipeline.storage.place import Place
from scoreshield.manifest.build import describe_projection
from scoreshield.manifest.schema import ArrayRecord, PostProcessing
from scoreshield.mechanisms.released import released_factor
from scoreshield.projection import METHODS, DenseOperator, Projection, project
from scoreshield.projection.certificate import smallest_eigenvalue_bound
from scoreshield.projection.methods.none import clip_only
from scoreshield.projection.result import Iteration

PROGRESS_TOPIC = "scoreshield-progress"


@dataclass(frozen=True)
class ProjectJob:
    """One projection: where the noisy blocks are, what to do to them, where the result goes.

    Attributes
    ----------
    noisy : the noisy block store
    triangle : its geometry
    sigma : standard deviation σ of the noise
    method, tolerance, max_iterations, rank : as for :func:`scoreshield.projection.project`
    target : folder to make, in the run directory
    threads : BLAS threads of the one task; in the blockwise form, threads of all workers together
    """

    noisy: Place
    triangle: Triangle
    sigma: float
    method: str
    tolerance: float
    max_iterations: int
    rank: int | Literal["auto"] | None
    target: Path
    threads: int = 1


@dataclass(frozen=True)
class ProjectionSummary:
    """A finished projection: what the manifest says of it, and the arrays that hold it.

    Attributes
    ----------
    post_processing : method, feasibility, history, certificate
    factor, diagonal : shape, type and digest of the stored arrays
    """

    post_processing: PostProcessing
    factor: ArrayRecord
    diagonal: ArrayRecord


def project_task(job: ProjectJob, index: int = 0) -> ProjectionSummary:
    """Project the noisy matrix and store factor and diagonal; a finished projection is kept.

    Raises
    ------
    ConfigurationError
        A method without a factor, which needs no task.
    IntegrityFailure
        A noisy block is missing or damaged.
    """
    if not METHODS[job.method].makes_factor:
        raise ConfigurationError(
            f"method {job.method!r} makes no factor; publish its blocks from the noisy store "
            "directly"
        )
    finished = load_projection(job.target)
    if finished is not None:
        return finished
    with threadpool_limits(limits=job.threads):
        projection = project(
            DenseOperator(assemble(job.noisy, job.triangle)),
            sigma=job.sigma,
            method=job.method,
            tolerance=job.tolerance,
            max_iterations=job.max_iterations,
            rank=job.rank,
            progress=_report,
            form="dense",
        )
    return save_projection(job.target, projection, job.triangle.side)


def assemble(noisy: Place, triangle: Triangle) -> NDArray[np.float32]:
    """The whole noisy matrix (n, n), symmetric, from its packed blocks."""
    matrix = np.empty((triangle.n, triangle.n), dtype=np.float32)
    for index in range(triangle.count):
        i, j = triangle.position(index)
        block = read_block(noisy, triangle, index)
        matrix[triangle.span(i), triangle.span(j)] = block
        matrix[triangle.span(j), triangle.span(i)] = block.T
    # Codes need not hold the 1 that it is by definition.
    np.fill_diagonal(matrix, 1.0)
    return matrix


def save_projection(target: Path, projection: Projection, side: int) -> ProjectionSummary:
    """Store a projection in panels of ``side`` rows under a temporary name, then rename it."""
    if projection.factor is None:
        raise ConfigurationError(
            f"method {projection.method!r} makes no factor, there is nothing to store"
        )
    factor, diagonal = released_factor(projection.factor)
    folder = begin_projection(target, factor.shape, side)
    arrays.open_for_writing(folder / PROJECTION_STORE, "factor")[...] = factor
    arrays.open_for_writing(folder / PROJECTION_STORE, "diagonal")[...] = diagonal
    described = describe_projection(_certified_as_stored(projection, factor, diagonal))
    return finish_projection(folder, target, described)


def begin_projection(target: Path, shape: tuple[int, int], side: int) -> Path:
    """A folder beside ``target`` with empty arrays for a factor of that shape and its diagonal.

    What attempts that ended early have left is removed.
    """
    _sweep_unfinished(target)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    arrays.create_group(folder / PROJECTION_STORE)
    rows = min(side, shape[0])
    arrays.create_array(folder / PROJECTION_STORE, "factor", shape, (rows, shape[1]))
    arrays.create_array(folder / PROJECTION_STORE, "diagonal", shape[:1], (rows,))
    return folder


def finish_projection(
    folder: Path, target: Path, post_processing: PostProcessing
) -> ProjectionSummary:
    """Make a folder with both arrays written durable, add its summary and give it its name."""
    store = folder / PROJECTION_STORE
    sync_tree(store, file_mode=0o600, folder_mode=0o700)
    summary = ProjectionSummary(
        post_processing, _record(store, "factor"), _record(store, "diagonal")
    )
    write_atomically(folder / PROJECTION_SUMMARY, _to_json(summary))
    return _take_name(folder, target, summary)


def load_projection(target: Path) -> ProjectionSummary | None:
    """The projection stored at ``target``, or None where none is finished and intact."""
    store = target / PROJECTION_STORE
    try:
        found = json.loads((target / PROJECTION_SUMMARY).read_text())
        summary = ProjectionSummary(
            PostProcessing.model_validate_json(json.dumps(found["post_processing"])),
            ArrayRecord.model_validate_json(json.dumps(found["factor"])),
            ArrayRecord.model_validate_json(json.dumps(found["diagonal"])),
        )
        intact = summary.factor == _record(store, "factor") and summary.diagonal == _record(
            store, "diagonal"
        )
    except (OSError, ValueError, KeyError, TypeError, ValidationError, IntegrityFailure):
        return None
    return summary if intact else None


def unprojected(n: int) -> PostProcessing:
    """What a manifest says of method ``none``: entries clipped to [−1, 1], not feasible."""
    # The words are those of the method itself; the size of the matrix enters as its rank alone.
    clipped = clip_only(DenseOperator(np.ones((1, 1))))
    return describe_projection(replace(clipped, rank=n))


def _certified_as_stored(
    projection: Projection, factor: NDArray[np.float32], diagonal: NDArray[np.float32]
) -> Projection:
    # The eigenvalue bound that is published must be that of the arrays that are published.
    if projection.certificate is None:
        return projection
    bound = smallest_eigenvalue_bound(factor.astype(np.float64), diagonal.astype(np.float64))
    return replace(
        projection, certificate=replace(projection.certificate, smallest_eigenvalue_bound=bound)
    )


def _record(store: Path, name: str) -> ArrayRecord:
    return describe_array(arrays.open_for_reading(store, name))


def describe_array(array: Any) -> ArrayRecord:
    """Shape, chunks, type and digest of a stored array."""
    return ArrayRecord(
        shape=tuple(array.shape),
        chunks=tuple(array.chunks),
        dtype=str(array.dtype),
        sha256=arrays.array_digest(array),
    )


def _take_name(folder: Path, target: Path, summary: ProjectionSummary) -> ProjectionSummary:
    try:
        os.rename(folder, target)
    except OSError:
        # Another attempt of the same task was first; its result stands unless it is damaged.
        finished = load_projection(target)
        if finished is not None:
            shutil.rmtree(folder)
            return finished
        shutil.rmtree(target)
        os.rename(folder, target)
    sync(target.parent)
    return summary


def _sweep_unfinished(target: Path) -> None:
    for folder in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(folder, ignore_errors=True)


def _to_json(summary: ProjectionSummary) -> bytes:
    content = {
        "post_processing": summary.post_processing.model_dump(mode="json"),
        "factor": summary.factor.model_dump(mode="json"),
        "diagonal": summary.diagonal.model_dump(mode="json"),
    }
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def _report(step: Iteration) -> None:
    """Tell the cluster's observers how far the iteration is; no value of the matrix leaves."""
    try:
        worker = get_worker()
    except ValueError:
        return
    worker.log_event(PROGRESS_TOPIC, {"stage": "project", **asdict(step)})
