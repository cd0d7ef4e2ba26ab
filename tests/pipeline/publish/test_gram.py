"""Publication: what is written, in which order, and that a finished release is never touched."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.project.dense import PROGRESS_TOPIC, ProjectJob, project_task, unprojected
from pipeline.publish.gram import (
    PublishJob,
    describe_arrays,
    finish,
    prepare_release,
    publish_block,
    publish_panel,
)
from pipeline.publish.signing import load_or_create_signing_key, sign
from pipeline.reader.verify import verify_release
from pipeline.storage import arrays
from pipeline.storage.arrays import array_digest
from pipeline.storage.place import stored_files
from scoreshield.manifest.schema import from_json
from tests.harness.small_release import noisy_matrix, unsigned_manifest, write_arrays, write_noisy


@pytest.fixture
def job(releases: Callable[..., Any], tmp_path: Path) -> PublishJob:
    """A job that publishes the session's projection afresh."""
    return replace(releases().job, directory=tmp_path / "gram-test")


def read(folder: Path, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray(zarr.open_group(f"{folder}/release.zarr", mode="r")[name][:])


def test_gram_is_the_product_of_the_factor(releases: Callable[..., Any]) -> None:
    folder = releases().folder
    factor, gram = read(folder, "factor"), read(folder, "gram")
    expected = factor.astype(np.float64) @ factor.astype(np.float64).T
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(gram, expected, rtol=0, atol=2.0**-24)
    np.testing.assert_array_equal(gram, gram.T)
    assert (np.diagonal(gram) == 1.0).all()
    assert np.abs(gram).max() <= 1.0
    norms = (factor.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(norms + read(folder, "diagonal"), 1.0, rtol=0, atol=2.0**-22)


def test_method_none_publishes_clipped_noisy_values(releases: Callable[..., Any]) -> None:
    gram = read(releases("none", ("gram",)).folder, "gram")
    noisy = noisy_matrix()
    assert np.abs(noisy).max() > 1.0
    np.testing.assert_array_equal(gram, np.clip(noisy, -1.0, 1.0))


def test_the_store_is_laid_out_as_promised(releases: Callable[..., Any]) -> None:
    folder = releases().folder
    group = zarr.open_group(str(folder / "release.zarr"), mode="r")
    assert group.metadata.zarr_format == 3
    assert {name: group[name].chunks for name in group} == {
        "factor": (16, group["factor"].shape[1]),
        "diagonal": (16,),
        "gram": (16, 16),
    }
    for name in group:
        metadata = group[name].metadata
        assert np.isnan(metadata.fill_value)
        assert [type(codec).__name__ for codec in metadata.codecs] == ["BytesCodec", "Crc32cCodec"]


@pytest.mark.parametrize(
    ("n", "side", "chunks"), [(5, 16, (5, 5)), (16, 16, (16, 16)), (17, 16, (16, 16))]
)
def test_chunks_never_exceed_the_matrix(
    tmp_path: Path, n: int, side: int, chunks: tuple[int, int]
) -> None:
    triangle = Triangle(n, side)
    noisy = write_noisy(tmp_path / "noisy.zarr", noisy_matrix(n), triangle)
    job = PublishJob(tmp_path / "r", triangle, ("gram",), None, noisy)
    write_arrays(job)
    gram = zarr.open_group(str(job.store), mode="r")["gram"]
    assert gram.chunks == chunks
    np.testing.assert_array_equal(gram[:], np.clip(noisy_matrix(n), -1, 1))


def test_digests_are_those_of_the_plain_bytes(releases: Callable[..., Any]) -> None:
    made = releases()
    for name, record in made.manifest.arrays.items():
        values = read(made.folder, name)
        assert record.sha256 == hashlib.sha256(values.tobytes()).hexdigest()
        assert record.shape == values.shape
        assert record.dtype == "float32"


@pytest.mark.parametrize("limit", [1, 700, 4000, 10**9])
def test_digests_do_not_depend_on_the_panels(
    releases: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    made = releases()
    monkeypatch.setattr(arrays, "_PANEL_BYTES", limit)
    gram = zarr.open_group(str(made.folder / "release.zarr"), mode="r")["gram"]
    assert array_digest(gram) == made.manifest.arrays["gram"].sha256


def test_publishing_twice_writes_the_same_bits(
    job: PublishJob, releases: Callable[..., Any]
) -> None:
    write_arrays(job)
    publish_block(job, 4)
    publish_panel(job, 3)
    assert describe_arrays(job.directory) == releases().manifest.arrays


def test_a_cluster_writes_the_same_bits(
    threads: Client, tmp_path: Path, releases: Callable[..., Any]
) -> None:
    made = releases()
    triangle = made.job.triangle
    project = ProjectJob(made.job.noisy, triangle, 0.3, "nearest", 1e-7, 500, None, tmp_path / "p")
    (summary,) = run_tasks(threads, "project", project_task, project, [0])
    job = PublishJob(tmp_path / "gram-test", triangle, ("factor", "gram"), project.target, None)
    prepare_release(job)
    panels = run_tasks(threads, "publish-factor", publish_panel, job, range(triangle.per_side))
    assert sorted(panels) == list(range(triangle.per_side))
    blocks = run_tasks(threads, "publish-gram", publish_block, job, range(triangle.count))
    assert sorted(blocks) == list(range(triangle.count))
    manifest = unsigned_manifest(job.directory, summary.post_processing)
    finish(job.directory, sign(manifest, load_or_create_signing_key(tmp_path)))
    assert manifest.arrays == made.manifest.arrays
    assert verify_release(job.directory).ok
    steps = [event for _, event in threads.get_events(PROGRESS_TOPIC)]
    assert [step["number"] for step in steps] == [
        step.number for step in summary.post_processing.history
    ]
    # Dask adds the worker's address; nothing else may join, least of all values of the matrix.
    fields = {"stage", "worker", "number", "residual", "rank", "eigendecompositions", "products"}
    assert all(set(step) == fields for step in steps)


def test_the_manifest_comes_last_and_is_copied(job: PublishJob, tmp_path: Path) -> None:
    write_arrays(job)
    folder = job.directory
    assert not (folder / "manifest.json").exists()
    signed = sign(unsigned_manifest(folder, unprojected(50)), load_or_create_signing_key(tmp_path))
    finish(folder, signed)
    assert from_json((folder / "manifest.json").read_bytes()) == signed
    copy = zarr.open_group(str(job.store), mode="r").attrs["scoreshield_manifest"]
    assert copy == signed.model_dump(mode="json")


def test_a_finished_release_can_be_read_by_everybody(releases: Callable[..., Any]) -> None:
    folder = releases().folder
    for entry in (folder, *folder.rglob("*")):
        mode = 0o755 if entry.is_dir() else 0o644
        assert stat.S_IMODE(entry.stat().st_mode) == mode, entry


def test_a_finished_release_is_never_touched(releases: Callable[..., Any]) -> None:
    made = releases()
    before = {file: file.stat().st_mtime_ns for file in made.folder.rglob("*")}
    with pytest.raises(ConfigurationError, match="never overwritten"):
        prepare_release(made.job)
    with pytest.raises(ConfigurationError, match="never overwritten"):
        finish(made.folder, made.manifest)
    assert {file: file.stat().st_mtime_ns for file in made.folder.rglob("*")} == before


def test_an_interrupted_publication_is_written_afresh(
    job: PublishJob, releases: Callable[..., Any]
) -> None:
    prepare_release(job)
    publish_block(job, 2)
    (job.store / "gram/c/7/7").parent.mkdir()
    (job.store / "gram/c/7/7").write_bytes(b"from another geometry")
    (job.directory / ".manifest.json.abc").write_bytes(b"{")
    write_arrays(job)
    assert describe_arrays(job.directory) == releases().manifest.arrays
    assert "gram/c/7/7" not in stored_files(job.store)
    assert [entry.name for entry in job.directory.iterdir()] == ["release.zarr"]


def test_foreign_files_are_not_cleared(job: PublishJob) -> None:
    folder = job.directory
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match=r"thesis\.tex"):
        prepare_release(job)
    assert (folder / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrays": ("grams",)}, "must name 'factor', 'gram'"),
        ({"arrays": ()}, "must name 'factor', 'gram'"),
        ({"projection": None}, "'none' makes no factor"),
    ],
)
def test_arrays_that_cannot_be_made_are_refused(
    job: PublishJob, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        prepare_release(replace(job, **change))
    assert not job.directory.exists()


def test_a_gap_is_never_signed_over(job: PublishJob, tmp_path: Path) -> None:
    write_arrays(job)
    folder = job.directory
    manifest = unsigned_manifest(folder, unprojected(50))
    with pytest.raises(IntegrityFailure, match="not signed"):
        finish(folder, manifest)
    signed = sign(manifest, load_or_create_signing_key(tmp_path))
    (job.store / "gram/c/1/1").unlink()
    with pytest.raises(IntegrityFailure, match="missing"):
        describe_arrays(folder)
    with pytest.raises(IntegrityFailure, match="gram/c/1/1"):
        finish(folder, signed)
    publish_block(job, job.triangle.index(1, 1))
    (job.store / "gram/c/1/1.0123.partial").write_bytes(b"left by a killed worker")
    without_factor = {"arrays": {"gram": manifest.arrays["gram"]}}
    with pytest.raises(IntegrityFailure, match="the manifest describes"):
        finish(folder, signed.model_copy(update=without_factor))
    finish(folder, signed)
    assert verify_release(folder).ok


def test_a_damaged_projection_is_not_published(
    job: PublishJob, releases: Callable[..., Any], tmp_path: Path
) -> None:
    broken = tmp_path / "projection"
    arrays.create_group(broken / "projection.zarr")
    arrays.create_array(broken / "projection.zarr", "factor", (50, 4), (16, 4))
    prepare_release(replace(job, projection=broken))
    with pytest.raises(IntegrityFailure, match="missing"):
        publish_panel(replace(job, projection=broken), 0)
    with pytest.raises(IntegrityFailure, match="missing"):
        publish_block(replace(job, projection=broken), 1)
