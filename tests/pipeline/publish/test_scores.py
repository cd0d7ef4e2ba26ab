"""Publishing, reading and verifying scores, on blocks written by the block store itself."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.plan.geometry import Rectangle
from pipeline.publish.gram import describe_arrays, finish
from pipeline.publish.scores import PublishScoresJob, prepare_scores, publish_scores
from pipeline.publish.signing import load_or_create_signing_key, sign
from pipeline.reader.description import render_markdown
from pipeline.reader.manifest_file import check_layout
from pipeline.reader.open import open_release
from pipeline.reader.verify import VerificationReport, verify_release
from pipeline.storage import blocks
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import ParameterError
from scoreshield.manifest.build import build_manifest, describe_clipped_scores
from scoreshield.manifest.schema import Manifest, from_json
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange

M, N, D = 7, 50, 4
RECTANGLE = Rectangle(M, N, 4, 16)
LOW, HIGH = 0.1, 0.9
DIGEST = "ab" * 32


def noisy_scores() -> NDArray[np.float32]:
    return np.random.default_rng(7).normal(0.5, 0.6, size=(M, N)).astype(np.float32)


def publish(root: Path, noisy: NDArray[np.float32]) -> PublishScoresJob:
    store = root / "noisy.zarr"
    blocks.create_store(store, RECTANGLE)
    job = PublishScoresJob(root / "scores-test", RECTANGLE, 2, store, LOW, HIGH)
    for index in range(RECTANGLE.count):
        blocks.write_block(store, RECTANGLE, index, noisy[RECTANGLE.region(index)])
    prepare_scores(job)
    for index in range(RECTANGLE.count):
        assert publish_scores(job, index) == index
    return job


def unsigned(folder: Path) -> Manifest:
    queries = to_fixed(np.random.default_rng(2).normal(size=(M, D)))
    mechanism = scores_mechanism(N, queries, 2.0, 1e-6, Adjacency(), ScoreRange(LOW, HIGH))
    return build_manifest(
        mechanism,
        describe_clipped_scores(mechanism),
        release_id="scores-test",
        published_at="2026-01-02T03:04:05Z",
        software={"scoreshield": "0.1.0"},
        arrays=describe_arrays(folder),
        queries_sha256=DIGEST,
    )


@dataclass(frozen=True)
class Made:
    root: Path
    folder: Path
    noisy: NDArray[np.float32]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root, noisy = tmp_path_factory.mktemp("scores"), noisy_scores()
    job = publish(root, noisy)
    manifest = sign(unsigned(root / "scores-test"), load_or_create_signing_key(root))
    finish(job.directory, manifest)
    return Made(root, root / "scores-test", noisy)


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "scores-test"))


def faults(report: VerificationReport) -> list[str]:
    return [check.name for check in report.faults]


def test_scores_are_the_noisy_ones_clipped(made: Made) -> None:
    array = zarr.open_group(str(made.folder / "release.zarr"), mode="r")["scores"]
    expected = np.clip(made.noisy, np.float32(LOW), np.float32(HIGH))
    np.testing.assert_array_equal(array[:], expected)
    assert (array.shape, array.chunks, array.dtype) == ((M, N), (2, 16), np.float32)


def test_every_way_of_reading_agrees(made: Made) -> None:
    release, truth = open_release(made.folder), np.clip(made.noisy, LOW, HIGH).astype(np.float32)
    assert (release.m, release.n) == (M, N)
    np.testing.assert_array_equal(release.scores[:], truth)
    np.testing.assert_array_equal(release.rows(2, 5), truth[2:5])
    np.testing.assert_array_equal(release.block(slice(-2, None), slice(5, 20)), truth[-2:, 5:20])
    lazy = release.to_dask()
    assert lazy.chunks == ((2, 2, 2, 1), (16, 16, 16, 2))
    assert lazy.name == "scoreshield-scores-scores-test"
    np.testing.assert_array_equal(lazy.compute(scheduler="synchronous"), truth)
    labelled = release.to_xarray()
    assert (labelled.dims, labelled.name) == (("query", "record"), "scores")
    assert from_json(labelled.attrs["manifest"]) == release.manifest
    assert repr(release).startswith("<Release scores-test: m=7, n=50, arrays=scores, epsilon=2,")
    with pytest.raises(ConfigurationError, match=r"arrays \['scores'\], not 'factor'"):
        _ = release.factor


@pytest.mark.parametrize("block", [3, 16, 1024])
@pytest.mark.parametrize("k", [1, 6, N])
def test_topk_of_a_query_leaves_no_record_out(made: Made, block: int, k: int) -> None:
    """Row i of a Gram matrix does not rank record i; query i has no record of its own."""
    release = open_release(made.folder)
    scores = release.rows(0, M)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    indices, values = release.topk(k, block=block)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, axis=1))
    np.testing.assert_array_equal(release.topk(k, rows=[6, 0])[0], order[[6, 0]])


def test_topk_is_refused_beyond_the_records_and_queries(made: Made) -> None:
    release = open_release(made.folder)
    with pytest.raises(ParameterError, match="k must be 1 to 50, the records; found 51"):
        release.topk(N + 1)
    with pytest.raises(ParameterError, match="row 7 asked for"):
        release.topk(1, rows=[M])


def test_what_is_shown_speaks_of_scores(made: Made) -> None:
    text = render_markdown(open_release(made.folder).manifest)
    for part in (
        "cosine scores of 7 public queries against 50 records",
        "and so are the queries",
        "Scores were clipped to [0.1, 0.9]",
        "release.topk(10)  # per query",
        "A single score tells less than its range does",
    ):
        assert part in text
    assert "mirrored" not in text


def test_verify_accepts_it_and_knows_its_queries(made: Made) -> None:
    assert verify_release(made.folder, expected_queries=DIGEST).ok
    report = verify_release(made.folder, expected_queries="cd" * 32)
    assert faults(report) == ["queries"]
    assert DIGEST in report.faults[0].detail


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("flipped", "checksums"),
        ("missing chunk", "files"),
        ("extra file", "files"),
        ("rewritten value", "digest of scores"),
    ],
)
def test_verify_names_damage(copy: Path, damage: str, fault: str) -> None:
    store = copy / "release.zarr"
    chunk = store / "scores" / "c" / "1" / "2"
    if damage == "flipped":
        content = bytearray(chunk.read_bytes())
        content[9] ^= 1
        chunk.write_bytes(bytes(content))
    elif damage == "missing chunk":
        chunk.unlink()
    elif damage == "extra file":
        (store / "scores" / "c" / "1" / "9").write_bytes(b"x")
    else:
        zarr.open_group(str(store), mode="r+")["scores"][3, 40] = 0.5
    assert fault in faults(verify_release(copy))


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_signed_release_with_a_score_out_of_range_is_found(value: float, tmp_path: Path) -> None:
    job = publish(tmp_path, noisy_scores())
    zarr.open_group(str(tmp_path / "scores-test" / "release.zarr"), mode="r+")["scores"][3, 40] = (
        value
    )
    manifest = sign(unsigned(tmp_path / "scores-test"), load_or_create_signing_key(tmp_path))
    finish(job.directory, manifest)
    report = verify_release(tmp_path / "scores-test")
    assert faults(report) == ["scores range"]
    assert "query 3 (scores/c/1)" in report.faults[0].detail


def test_a_missing_noisy_block_is_not_published(tmp_path: Path) -> None:
    job = publish(tmp_path, noisy_scores())
    (job.noisy / "blocks" / "c" / "2" / "0" / "0").unlink()
    with pytest.raises(IntegrityFailure, match="noisy block 2"):
        publish_scores(job, 2)


def test_an_interrupted_publication_is_cleared_and_a_finished_one_is_kept(
    made: Made, tmp_path: Path
) -> None:
    job = publish(tmp_path, noisy_scores())
    prepare_scores(job)
    assert not list((tmp_path / "scores-test" / "release.zarr" / "scores").glob("c/*/*"))
    finished = PublishScoresJob(made.folder, RECTANGLE, 2, made.root / "noisy.zarr", LOW, HIGH)
    with pytest.raises(ConfigurationError, match="never overwritten"):
        prepare_scores(finished)


@pytest.mark.parametrize(
    "changes",
    [
        {"queries_sha256": None},
        {"regime": "gram"},
        {"arrays": {}},
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(made: Made, changes: dict[str, str]) -> None:
    manifest = open_release(made.folder).manifest
    check_layout(manifest)
    with pytest.raises(IntegrityFailure):
        check_layout(manifest.model_copy(update=changes))
