"""A small release made by the pipeline's own functions, for the tests of its readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.geometry import Triangle
from pipeline.project.dense import ProjectJob, project_task, unprojected
from pipeline.publish.gram import (
    PublishJob,
    describe_arrays,
    finish,
    prepare_release,
    publish_block,
    publish_panel,
)
from pipeline.publish.signing import load_or_create_signing_key, sign
from pipeline.storage import blocks
from scoreshield.manifest.build import build_manifest
from scoreshield.manifest.schema import Manifest, NoisyRecord, PostProcessing
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import FLOAT32, Encoding

N, SIDE, SIGMA = 50, 16, 0.3
"""Four blocks a side, the last one of 2 rows: edges are part of every test."""


def noisy_matrix(n: int = N, sigma: float = SIGMA) -> NDArray[np.float32]:
    """Cosines of random vectors plus mirrored noise, unit diagonal."""
    random = np.random.default_rng(7)
    rows = random.normal(size=(n, 8))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    upper = np.triu(rows @ rows.T + sigma * random.normal(size=(n, n)), 1)
    return (upper + upper.T + np.eye(n)).astype(np.float32)


def write_noisy(
    path: Path, matrix: NDArray[np.float32], triangle: Triangle, encoding: Encoding = FLOAT32
) -> Path:
    """A noisy block store that holds ``matrix``."""
    blocks.create_store(path, triangle, encoding)
    for index in range(triangle.count):
        i, j = triangle.position(index)
        block = matrix[triangle.span(i), triangle.span(j)]
        blocks.write_block(path, triangle, index, block)
    return path


@dataclass(frozen=True)
class Made:
    """What a release was made of."""

    folder: Path
    job: PublishJob
    manifest: Manifest


def write_arrays(job: PublishJob) -> None:
    """Run every publishing task in this process."""
    prepare_release(job)
    if "factor" in job.arrays:
        for index in range(job.triangle.per_side):
            publish_panel(job, index)
    if "gram" in job.arrays:
        for index in range(job.triangle.count):
            publish_block(job, index)


def unsigned_manifest(
    folder: Path, post_processing: PostProcessing, n: int = N, release_id: str = "gram-test"
) -> Manifest:
    """A manifest for the arrays in ``folder``."""
    return build_manifest(
        calibrate_gram(n, 8, 1.0, 1e-6),
        post_processing,
        release_id=release_id,
        published_at="2026-01-02T03:04:05Z",
        software={"scoreshield": "0.1.0"},
        arrays=describe_arrays(folder),
        noisy=NoisyRecord(
            sha256="0" * 64,
            blocks=10,
            block_side=SIDE,
            dtype="float32",
            step=None,
            rounding=FLOAT32.described(1.0),
        ),
    )


def make(root: Path, method: str, arrays: tuple[str, ...]) -> Made:
    """A whole release under ``root``."""
    triangle = Triangle(N, SIDE)
    noisy = write_noisy(root / "noisy.zarr", noisy_matrix(), triangle)
    if method == "none":
        post_processing, projection = unprojected(N), None
    else:
        projection = root / "projection"
        project = ProjectJob(noisy, triangle, SIGMA, method, 1e-7, 500, None, projection)
        post_processing = project_task(project).post_processing
    job = PublishJob(root / "gram-test", triangle, arrays, projection, noisy)
    write_arrays(job)
    key = load_or_create_signing_key(root)
    manifest = sign(unsigned_manifest(root / "gram-test", post_processing), key)
    finish(job.directory, manifest)
    return Made(root / "gram-test", job, manifest)
