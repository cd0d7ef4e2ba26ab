"""The sparse gallery on disk: read back, planned, and every damage found."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.errors import IntegrityFailure
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.sparse import panels_of, read_sparse
from pipeline.gallery.store import Gallery
from pipeline.ingest import ingest
from pipeline.ingest.ratings import RatingsOptions, ingest_ratings
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.geometry import Triangle
from pipeline.plan.memory import SparsePanels
from pipeline.storage import blocks
from scoreshield.mechanisms.gram import calibrate_gram

N, USERS = 1500, 400
"""Two noise tiles a side, with an edge."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("sparse")
    random = np.random.default_rng(2)
    popular = random.permutation(N)[:1000]
    pairs = {
        (int(random.integers(USERS) ** 2 // USERS), int(item)) for item in popular for _ in range(9)
    }
    text = "".join(f"{user},{item},{random.integers(1, 6)}\n" for user, item in sorted(pairs))
    (folder / "ratings.csv").write_text(text)
    (folder / "items.txt").write_text("".join(f"{item}\n" for item in range(N)))
    return ingest_ratings(
        folder / "ratings.csv",
        folder / "gallery.zarr",
        RatingsOptions("item", records=folder / "items.txt"),
        zero_rows="substitute",
    )


@pytest.fixture
def gallery(original: Gallery, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original.path, tmp_path / "gallery.zarr"))


def test_rows_read_in_any_panels_are_the_same_rows(original: Gallery) -> None:
    whole = read_sparse(original.path, 0, N).dense()
    for start, stop in [(0, 1), (3, 1024), (1024, N), (700, 700)]:
        assert (read_sparse(original.path, start, stop).dense() == whole[start:stop]).all()
    with pytest.raises(IndexError):
        read_sparse(original.path, 0, N + 1)


def test_noisy_blocks_are_those_of_the_dense_gallery(original: Gallery, tmp_path: Path) -> None:
    np.save(tmp_path / "dense.npy", read_sparse(original.path, 0, N).dense())
    dense = ingest(tmp_path / "dense.npy", tmp_path / "dense.zarr")
    # Ingesting fixed-point rows again would round them anew, so they are put in their place.
    zarr.open_group(dense.path, mode="r+")["embeddings"][:] = np.load(tmp_path / "dense.npy")
    mechanism, triangle = calibrate_gram(N, original.d, 8.0, 1e-6), Triangle(N, 1100)
    create_key(tmp_path / "key", bytes(32), "r", mechanism)
    written = []
    for made in (original, dense):
        run = tmp_path / made.path.stem
        (run / "receipts").mkdir(parents=True)
        blocks.create_store(run / "noisy.zarr", triangle)
        job = PerturbJob(
            gallery=made.path,
            store=run / "noisy.zarr",
            receipts=run / "receipts",
            key_file=tmp_path / "key",
            key_commitment=commitment(tmp_path / "key"),
            release_id="r",
            mechanism=mechanism,
            geometry=triangle,
            sparse=made.sparse,
        )
        written.append([perturb_block(job, index).sha256 for index in range(triangle.count)])
    assert written[0] == written[1]


def test_the_largest_panel_bounds_the_plan(original: Gallery) -> None:
    panels = panels_of(original)
    assert panels is not None
    per_row = np.diff(panels.pointers)
    assert panels.largest(1024) == max(per_row[:1024].sum(), per_row[1024:].sum())
    assert panels.largest(N) == per_row.sum()
    skewed = SparsePanels(10, np.array([0, 1, 2, 90, 91]))
    assert [skewed.largest(rows) for rows in (1, 2, 3)] == [88, 89, 90]


def test_the_digest_is_of_the_content_alone(original: Gallery, gallery: Path) -> None:
    assert content_digest(open_gallery(gallery)) == content_digest(original)
    group = zarr.open_group(str(gallery), mode="r+")
    integers = group["integers"][:]
    integers[5] += 1
    group["integers"][:] = integers
    assert content_digest(open_gallery(gallery)) != content_digest(original)


@pytest.mark.parametrize("name", ["pointers", "columns", "integers", "column_of_feature"])
def test_a_flipped_byte_is_found_on_reading(gallery: Path, name: str) -> None:
    chunk = gallery / name / "c.0"
    content = bytearray(chunk.read_bytes())
    content[8] ^= 1
    chunk.write_bytes(content)
    opened = open_gallery(gallery)
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        content_digest(opened)
    if name != "column_of_feature":
        with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
            read_sparse(gallery, 0, N)


@pytest.mark.parametrize(
    "name", ["pointers", "columns", "integers", "column_of_feature", "record_ids.bytes"]
)
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_missing_chunks_are_found_on_opening(gallery: Path, name: str, damage: str) -> None:
    chunk = gallery / name / "c.0"
    content = chunk.read_bytes()
    chunk.unlink()
    if damage == "cut short":
        chunk.write_bytes(content[:-1])
    with pytest.raises(IntegrityFailure, match=rf"1 of 8 chunks .* {name}/c.0"):
        open_gallery(gallery)


@pytest.mark.parametrize("name", ["pointers", "columns", "integers"])
def test_chunks_that_are_lost_after_opening_are_found_on_reading(gallery: Path, name: str) -> None:
    open_gallery(gallery)
    (gallery / name / "c.0").unlink()
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        read_sparse(gallery, 0, N)


@pytest.mark.parametrize(
    ("array", "value", "words"),
    [
        ("columns", -1, "canonical"),
        ("columns", 2**30, "canonical"),
        ("integers", 0, "canonical"),
        ("integers", 2**25, "longer than one"),
        ("pointers", 2**40, "do not grow"),
    ],
)
def test_values_that_break_the_bounds_are_found_on_reading(
    gallery: Path, array: str, value: int, words: str
) -> None:
    group = zarr.open_group(str(gallery), mode="r+")
    values = group[array][:]
    values[1] = value
    group[array][:] = values
    with pytest.raises(IntegrityFailure, match=words):
        read_sparse(gallery, 0, N)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("n", N - 1), ("d", 7), ("entries", 5), ("record_kind", "house"), ("fraction_bits", 23)],
)
def test_changed_attributes_are_found_on_opening(
    gallery: Path, attribute: str, value: object
) -> None:
    zarr.open_group(str(gallery), mode="r+").attrs[attribute] = value
    with pytest.raises(IntegrityFailure, match="metadata was changed"):
        open_gallery(gallery)
