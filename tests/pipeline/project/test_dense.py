"""The projection task: what it stores, that it resumes, and that it reads noisy blocks alone."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.project.dense import ProjectJob, assemble, load_projection, project_task, unprojected
from scoreshield.projection import project
from scoreshield.projection.certificate import smallest_eigenvalue_bound
from tests.harness.small_release import SIDE, SIGMA, N, noisy_matrix, write_noisy


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("noisy") / "noisy.zarr"
    return write_noisy(path, noisy_matrix(), Triangle(N, SIDE))


@pytest.fixture
def job(noisy: Path, tmp_path: Path) -> ProjectJob:
    return ProjectJob(
        noisy=noisy,
        triangle=Triangle(N, SIDE),
        sigma=SIGMA,
        method="nearest",
        tolerance=1e-7,
        max_iterations=500,
        rank=None,
        target=tmp_path / "projection",
    )


def stored(job: ProjectJob, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = zarr.open_group(f"{job.target}/projection.zarr", mode="r")[name][:]
    return np.asarray(values)


def test_blocks_are_put_together_exactly(job: ProjectJob) -> None:
    np.testing.assert_array_equal(assemble(job.noisy, job.triangle), noisy_matrix())


@pytest.mark.parametrize("method", ["aap", "nearest"])
def test_the_stored_factor_is_the_projection(job: ProjectJob, method: str) -> None:
    summary = project_task(replace(job, method=method))
    factor, diagonal = stored(job, "factor"), stored(job, "diagonal")
    expected = project(noisy_matrix(), method=method, tolerance=1e-7).gram()
    found = factor.astype(np.float64) @ factor.T.astype(np.float64)
    np.fill_diagonal(found, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert factor.dtype == diagonal.dtype == np.float32
    for row in factor:
        assert sum(Fraction(float(value)) ** 2 for value in row) <= 1
    assert summary.post_processing.method == method
    assert summary.post_processing.converged
    assert summary.post_processing.rank == factor.shape[1]
    assert len(summary.post_processing.history) == summary.post_processing.iterations


def test_the_certificate_is_that_of_the_stored_arrays(job: ProjectJob) -> None:
    certificate = project_task(job).post_processing.certificate
    assert certificate is not None
    assert certificate.smallest_eigenvalue_bound == smallest_eigenvalue_bound(
        stored(job, "factor").astype(np.float64), stored(job, "diagonal").astype(np.float64)
    )


def test_a_finished_projection_is_found_and_kept(job: ProjectJob) -> None:
    assert load_projection(job.target) is None
    summary = project_task(job)
    assert load_projection(job.target) == summary
    # The blocks are gone, so a second projection could only fail.
    assert project_task(replace(job, noisy=Path("nowhere"))) == summary
    assert [entry.name for entry in job.target.parent.iterdir()] == ["projection"]


@pytest.mark.parametrize("damage", ["summary", "half a summary", "chunk", "byte", "value", "array"])
def test_an_unfinished_or_damaged_projection_is_made_again(job: ProjectJob, damage: str) -> None:
    summary = project_task(job)
    target = job.target
    chunk = target / "projection.zarr/factor/c/1/0"
    if damage == "summary":
        (target / "summary.json").unlink()
    elif damage == "half a summary":
        text = (target / "summary.json").read_text()
        (target / "summary.json").write_text(text[: len(text) // 2])
    elif damage == "chunk":
        chunk.unlink()
    elif damage == "byte":
        content = bytearray(chunk.read_bytes())
        content[5] ^= 1
        chunk.write_bytes(bytes(content))
    elif damage == "value":
        zarr.open_group(str(target / "projection.zarr"), mode="r+")["diagonal"][3] = 0.75
    else:
        (target / "projection.zarr/factor/zarr.json").unlink()
    assert load_projection(job.target) is None
    assert project_task(job) == summary
    assert load_projection(job.target) == summary


def test_what_a_killed_attempt_left_is_swept(job: ProjectJob) -> None:
    leftover = job.target.parent / ".projection.abc"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"x")
    project_task(job)
    assert not leftover.exists()


def test_a_missing_noisy_block_is_refused(job: ProjectJob, tmp_path: Path) -> None:
    path = write_noisy(tmp_path / "own.zarr", noisy_matrix(), job.triangle)
    (tmp_path / "own.zarr/blocks/c/4/0/0").unlink()
    with pytest.raises(IntegrityFailure, match="noisy block 4"):
        project_task(replace(job, noisy=path))
    assert not job.target.exists()


def test_the_summary_holds_no_time_and_no_path(job: ProjectJob) -> None:
    project_task(job)
    text = (job.target / "summary.json").read_text()
    assert str(job.target.parent) not in text
    assert set(json.loads(text)) == {"post_processing", "factor", "diagonal"}


def test_method_none_has_no_task(job: ProjectJob) -> None:
    with pytest.raises(ConfigurationError, match="makes no factor"):
        project_task(replace(job, method="none"))
    described = unprojected(50)
    assert described.method == "none"
    assert described.rank == 50
    assert not described.feasible
