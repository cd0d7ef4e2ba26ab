"""Perturbed scores: the bits of the mechanism in memory, whatever the blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.gallery.store import Gallery
from pipeline.ingest import ingest
from pipeline.ingest.queries import Queries, keep_queries, queries_digest
from pipeline.perturb.keyfile import commitment, create_key, read_key
from pipeline.perturb.tasks import ScoresJob, perturb_scores
from pipeline.plan.geometry import Rectangle
from pipeline.storage import blocks
from pipeline.storage.blocks import matches
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.inmemory import PreparedGallery
from scoreshield.mechanisms.gaussian import Mechanism, noisy_block
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency

M, N, D = 1030, 2100, 12
"""A little more than one noise tile of queries, and than two of records."""
Jobs = Callable[[int, int, str], ScoresJob]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("gallery")
    np.save(folder / "source.npy", np.random.default_rng(3).normal(size=(N, D)))
    return ingest(folder / "source.npy", folder / "gallery.zarr")


@pytest.fixture(scope="module")
def queries() -> Queries:
    rows = to_fixed(np.random.default_rng(4).normal(size=(M, D)))
    return Queries(rows, queries_digest(rows))


@pytest.fixture(scope="module")
def mechanism(queries: Queries) -> Mechanism:
    return scores_mechanism(N, queries.rows, 4.0, 1e-6, Adjacency(), FULL_RANGE)


@pytest.fixture(scope="module")
def jobs(
    tmp_path_factory: pytest.TempPathFactory,
    gallery: Gallery,
    queries: Queries,
    mechanism: Mechanism,
) -> Jobs:
    """Jobs of one release, each with a store and receipts of its own; all share the key."""
    folder = tmp_path_factory.mktemp("runs")
    create_key(folder / "key", content_digest(gallery), "scores-a", mechanism)
    kept = keep_queries(folder, queries)

    def make(rows: int, columns: int, name: str) -> ScoresJob:
        run = folder / name
        (run / "receipts").mkdir(parents=True)
        rectangle = Rectangle(M, N, rows, columns)
        blocks.create_store(run / "noisy.zarr", rectangle)
        return ScoresJob(
            gallery=gallery.path,
            queries=kept,
            queries_sha256=queries.sha256,
            store=run / "noisy.zarr",
            receipts=run / "receipts",
            key_file=folder / "key",
            key_commitment=commitment(folder / "key"),
            release_id="scores-a",
            mechanism=mechanism,
            geometry=rectangle,
        )

    return make


@pytest.fixture(scope="module")
def expected(
    jobs: Jobs, gallery: Gallery, queries: Queries, mechanism: Mechanism
) -> NDArray[np.float32]:
    """The noisy scores in memory, under the same key."""
    key = read_key(Path(jobs(1024, 1024, "reference").key_file))
    rows = read_rows(gallery.path, 0, N)
    return noisy_block(mechanism, queries.rows, rows, 0, 0, key, "scores-a")


def stored(job: ScoresJob) -> NDArray[np.float32]:
    noisy = np.full((M, N), np.nan, dtype=np.float32)
    for index in range(job.geometry.count):
        region = job.geometry.region(index)
        noisy[region] = blocks.read_block(job.store, job.geometry, index)
    return noisy


@pytest.mark.parametrize(
    ("rows", "columns"), [(M, N), (1024, 1024), (1024, 2048), (700, 300), (64, N), (M, 100)]
)
def test_blocks_of_any_shape_are_the_matrix_in_memory(
    jobs: Jobs, expected: NDArray[np.float32], rows: int, columns: int
) -> None:
    job = jobs(rows, columns, f"shape-{rows}-{columns}")
    for index in reversed(range(job.geometry.count)):
        assert matches(job.store, perturb_scores(job, index))
    np.testing.assert_array_equal(stored(job), expected)


def test_a_service_in_memory_gives_the_same_scores(
    expected: NDArray[np.float32], jobs: Jobs, gallery: Gallery, queries: Queries
) -> None:
    job = jobs(1024, 1024, "service")
    prepared = PreparedGallery(np.load(gallery.path.with_name("source.npy")))
    key = read_key(job.key_file)
    scores = prepared.noisy_scores(job.mechanism, queries.rows, key, "scores-a")
    np.testing.assert_array_equal(scores, expected)


def test_the_noise_has_its_size_and_the_clean_scores_their_place(
    expected: NDArray[np.float32], gallery: Gallery, queries: Queries, mechanism: Mechanism
) -> None:
    clean = queries.rows.astype(np.float64) @ read_rows(gallery.path, 0, N).astype(np.float64).T
    noise = expected - clean
    assert abs(noise.std() / mechanism.sigma - 1) < 4 / np.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 4 * mechanism.sigma / np.sqrt(noise.size)


def test_a_block_with_an_intact_receipt_is_not_made_again(jobs: Jobs) -> None:
    job = jobs(1024, 1024, "skip")
    receipt = perturb_scores(job, 1)
    # Neither gallery, queries nor key is read for it.
    gone = replace(job, gallery=Path("gone"), queries=Path("gone"), key_file=Path("gone"))
    assert perturb_scores(gone, 1) == receipt
    with pytest.raises(IntegrityFailure):
        perturb_scores(gone, 2)


def test_other_queries_are_never_scored_with_this_runs_noise(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(1024, 1024, "other-queries")
    rows = to_fixed(np.random.default_rng(5).normal(size=(M, D)))
    other = keep_queries(tmp_path, Queries(rows, queries_digest(rows)))
    with pytest.raises(IntegrityFailure, match="not those it was started with"):
        perturb_scores(replace(job, queries=other), 0)
    assert not list(job.receipts.iterdir())


def test_a_job_holds_places_and_settings_and_no_values() -> None:
    assert {str(field.type) for field in fields(ScoresJob)} <= {
        "Path",
        "Place",
        "str",
        "bool",
        "Mechanism",
        "Geometry",
    }
