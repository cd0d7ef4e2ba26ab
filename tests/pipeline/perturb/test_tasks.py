"""Perturbation: the same bits for any blocks, workers or repetitions, and nothing clean leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client
from numpy.typing import NDArray

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.errors import IntegrityFailure
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.gallery.store import Gallery
from pipeline.ingest import ingest
from pipeline.perturb.keyfile import commitment, create_key, read_key
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.geometry import Triangle
from pipeline.project.dense import assemble
from pipeline.storage import blocks
from pipeline.storage.blocks import matches
from scoreshield.inmemory import perturb_gram
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import FLOAT32, Encoding, choose_encoding

N, D = 1100, 12
"""A little more than one noise tile."""
Jobs = Callable[..., PerturbJob]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("gallery")
    np.save(folder / "source.npy", np.random.default_rng(3).normal(size=(N, D)))
    return ingest(folder / "source.npy", folder / "gallery.zarr")


@pytest.fixture(scope="module")
def mechanism() -> Mechanism:
    return calibrate_gram(N, D, 4.0, 1e-6)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery, mechanism: Mechanism) -> Jobs:
    """Jobs of one release, each with a store and receipts of its own; all share the key."""
    folder = tmp_path_factory.mktemp("runs")
    create_key(folder / "key", content_digest(gallery), "gram-a", mechanism)

    def make(side: int, name: str, encoding: Encoding = FLOAT32) -> PerturbJob:
        run = folder / name
        (run / "receipts").mkdir(parents=True)
        blocks.create_store(run / "noisy.zarr", Triangle(N, side), encoding)
        return PerturbJob(
            gallery=gallery.path,
            store=run / "noisy.zarr",
            receipts=run / "receipts",
            key_file=folder / "key",
            key_commitment=commitment(folder / "key"),
            release_id="gram-a",
            mechanism=mechanism,
            geometry=Triangle(N, side),
        )

    return make


@pytest.fixture(scope="module")
def expected(jobs: Jobs, gallery: Gallery, mechanism: Mechanism) -> NDArray[np.float32]:
    """The noisy matrix in memory, under the same key."""
    key = read_key(Path(jobs(1024, "reference").key_file))
    return perturb_gram(read_rows(gallery.path, 0, N), mechanism, key, "gram-a")


@pytest.mark.parametrize("side", [100, 256, 1000, 4096])
def test_blocks_of_any_side_are_the_matrix_in_memory(
    jobs: Jobs, expected: NDArray[np.float32], side: int
) -> None:
    job = jobs(side, f"side-{side}")
    for index in range(job.geometry.count):
        receipt = perturb_block(job, index)
        assert matches(job.store, receipt)
    np.testing.assert_array_equal(assemble(job.store, job.geometry), expected)


@pytest.mark.parametrize("side", [256, 1000])
def test_codes_of_any_side_are_those_of_the_matrix_in_memory(
    jobs: Jobs, expected: NDArray[np.float32], mechanism: Mechanism, side: int
) -> None:
    encoding = choose_encoding(mechanism.sigma)
    assert encoding.dtype == "int8"
    job = jobs(side, f"codes-{side}", encoding)
    for index in range(job.geometry.count):
        assert matches(job.store, perturb_block(job, index))
    rounded = encoding.decode(encoding.encode(expected))
    np.fill_diagonal(rounded, 1.0)
    np.testing.assert_array_equal(assemble(job.store, job.geometry), rounded)
    key = read_key(job.key_file)
    rows = read_rows(job.gallery, 0, N)
    np.testing.assert_array_equal(perturb_gram(rows, mechanism, key, "gram-a", encoding), rounded)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with open_cluster(Cluster(workers=1), tmp_path_factory.mktemp("scratch")) as connected:
        yield connected


@pytest.mark.parametrize("workers", ["threads", "process"])
def test_any_number_of_workers_makes_the_same_bits(
    jobs: Jobs,
    expected: NDArray[np.float32],
    mechanism: Mechanism,
    workers: str,
    request: pytest.FixtureRequest,
) -> None:
    client = request.getfixturevalue(workers)
    encoding = choose_encoding(mechanism.sigma)
    for side, stored in ((256, FLOAT32), (1000, FLOAT32), (1000, encoding)):
        job = jobs(side, f"workers-{workers}-{side}-{stored.dtype}", stored)
        receipts = list(
            run_tasks(
                client, f"s{side}{stored.dtype}", perturb_block, job, range(job.geometry.count)
            )
        )
        assert sorted(receipt.block for receipt in receipts) == list(range(job.geometry.count))
        rounded = stored.decode(stored.encode(expected.copy()))
        np.fill_diagonal(rounded, 1.0)
        np.testing.assert_array_equal(assemble(job.store, job.geometry), rounded)


def test_values_are_integers_on_the_grid(
    expected: NDArray[np.float32], mechanism: Mechanism
) -> None:
    upper = expected[np.triu_indices(N, 1)].astype(np.float64)
    steps = upper / mechanism.grid
    # float32 holds 24 bits: values further out than 2^23 steps are rounded, still to the grid.
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert (np.diagonal(expected) == 1).all()
    # The clean values are at most 1: four standard errors of σ over half a million samples.
    assert abs(upper.std() / mechanism.sigma - 1) < 4 / np.sqrt(2 * upper.size) + 1e-3


def chunk(job: PerturbJob, index: int) -> Path:
    return job.store / "blocks" / "c" / str(index) / "0" / "0"


def test_a_block_with_an_intact_receipt_is_not_made_again(jobs: Jobs) -> None:
    job = jobs(400, "skip")
    receipt = perturb_block(job, 1)
    before = chunk(job, 1).stat().st_mtime_ns
    # Neither the gallery nor the key is read for it.
    unreachable = replace(job, gallery=Path("nowhere"), key_file=Path("nowhere"))
    assert perturb_block(unreachable, 1) == receipt
    assert chunk(job, 1).stat().st_mtime_ns == before
    with pytest.raises(IntegrityFailure):
        perturb_block(unreachable, 2)


@pytest.mark.parametrize("damage", ["no chunk", "flipped byte", "no receipt", "wrong receipt"])
def test_a_damaged_block_is_made_again_with_the_same_bits(jobs: Jobs, damage: str) -> None:
    job = jobs(400, f"damage-{damage}")
    receipt = perturb_block(job, 2)
    bits = chunk(job, 2).read_bytes()
    receipt_file = job.receipts / "2.json"
    if damage == "no chunk":
        chunk(job, 2).unlink()
    elif damage == "flipped byte":
        chunk(job, 2).write_bytes(bits[:9] + bytes([bits[9] ^ 4]) + bits[10:])
    elif damage == "no receipt":
        receipt_file.unlink()
    else:
        receipt_file.write_text(json.dumps({"block": 2, "sha256": "0" * 64}))
    assert perturb_block(job, 2) == receipt
    assert chunk(job, 2).read_bytes() == bits
    assert json.loads(receipt_file.read_text())["sha256"] == receipt.sha256


@pytest.mark.parametrize("row", [[0.3] * D, [1.0] * D, [float("nan")] * D])
def test_gallery_rows_that_break_the_sensitivity_are_refused(
    jobs: Jobs, tmp_path: Path, row: list[float]
) -> None:
    np.save(tmp_path / "source.npy", np.random.default_rng(4).normal(size=(N, D)))
    gallery = ingest(tmp_path / "source.npy", tmp_path / "gallery.zarr")
    group = zarr.open_group(gallery.path, mode="r+")
    group["embeddings"][7] = np.array(row, dtype=np.float32)
    job = replace(jobs(400, f"rows-{row[0]}"), gallery=gallery.path)
    with pytest.raises(IntegrityFailure, match="rows 0 to 399 are not what ingest wrote"):
        perturb_block(job, 0)
    assert not chunk(job, 0).exists()
    assert list(job.receipts.iterdir()) == []


def test_nothing_but_noisy_values_reaches_the_disk(jobs: Jobs, gallery: Gallery) -> None:
    job = jobs(1000, "leak")
    for index in range(job.geometry.count):
        receipt = perturb_block(job, index)
        assert json.loads((job.receipts / f"{index}.json").read_text()) == {
            "block": index,
            "sha256": receipt.sha256,
        }
    rows = read_rows(gallery.path, 0, N)
    key = read_key(job.key_file)
    for file in job.store.parent.rglob("*"):
        if file.is_file():
            raw = file.read_bytes()
            assert rows[500].tobytes() not in raw
            assert key not in raw
            assert key.hex().encode() not in raw


def test_a_job_carries_places_and_settings_only(jobs: Jobs) -> None:
    job = jobs(1000, "arguments")
    key = read_key(job.key_file)
    assert key.hex() not in repr(job)
    assert repr(key)[2:-1] not in repr(job)
