"""A gallery in an object store: the same records and lineage, complete or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError, IntegrityFailure, RunFailed
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.store import is_gallery, stored_ids
from pipeline.ingest import ingest
from pipeline.storage.claim import claim
from pipeline.storage.ids import decode
from pipeline.storage.object_path import ObjectPath
from scoreshield.errors import InputRejected
from tests.harness.command import run_command

N, D = 300, 16

CONFIGURATION = """
gallery: {gallery}
privacy: {{epsilon: 50.0, delta: 1.0e-6, adjacency: record}}
ledger: {{url: "sqlite:///ledger.db", epsilon: 75.0, delta: 1.0e-6}}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.npy"
    np.save(path, np.random.default_rng(1).normal(size=(N, D)).astype(np.float32))
    return path


def test_the_same_gallery_as_on_disk(
    source: Path, bucket: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks, the last one with an edge.
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 4 * D * 64)
    local = ingest(source, tmp_path / "gallery.zarr")
    remote = ingest(source, bucket / "gallery.zarr")
    assert remote.path == bucket / "gallery.zarr"
    assert (remote.n, remote.d) == (N, D)
    assert content_digest(remote) == content_digest(local)
    assert np.array_equal(read_rows(remote.path, 60, 140), read_rows(local.path, 60, 140))
    assert open_gallery(remote.path) == remote
    stored = (bucket / "gallery.zarr").files()
    assert stored.keys() == {
        str(file.relative_to(local.path)) for file in local.path.rglob("*") if file.is_file()
    }


def test_ids_lie_beside_the_records(bucket: ObjectPath, tmp_path: Path) -> None:
    names = [f"product {row}" for row in range(N)]
    np.savez(tmp_path / "a.npz", e=np.random.default_rng(1).normal(size=(N, D)), names=names)
    made = ingest(tmp_path / "a.npz", bucket / "named.zarr", key="e", public_ids="names")
    assert decode(stored_ids(made, 0, N)) == names


def test_a_missing_and_a_short_chunk_are_found(source: Path, bucket: ObjectPath) -> None:
    gallery = ingest(source, bucket / "gallery.zarr")
    chunk = bucket / "gallery.zarr" / "embeddings" / "c.0.0"
    content = chunk.read_bytes()
    chunk.write(content[:-1])
    with pytest.raises(IntegrityFailure, match=r"embeddings/c\.0\.0 has"):
        open_gallery(gallery.path)
    chunk.delete()
    with pytest.raises(IntegrityFailure, match=r"embeddings/c\.0\.0 is missing"):
        open_gallery(gallery.path)
    chunk.write(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        read_rows(gallery.path, 0, 1)


def test_a_replaced_gallery_is_read_anew(source: Path, bucket: ObjectPath) -> None:
    gallery = ingest(source, bucket / "gallery.zarr")
    before = read_rows(gallery.path, 0, 10)
    np.save(source, np.random.default_rng(2).normal(size=(N + 5, D)).astype(np.float32))
    with pytest.raises(InputRejected, match="exists there already"):
        ingest(source, bucket / "gallery.zarr")
    again = ingest(source, bucket / "gallery.zarr", overwrite=True)
    assert again.lineage == gallery.lineage
    assert again.n == N + 5
    assert not np.array_equal(read_rows(gallery.path, 0, 10), before)


def test_a_refused_source_leaves_nothing(source: Path, bucket: ObjectPath) -> None:
    rows = np.load(source)
    rows[7] = np.nan
    np.save(source, rows)
    with pytest.raises(InputRejected, match="row"):
        ingest(source, bucket / "gallery.zarr")
    assert bucket.files() == {}
    assert not bucket.exists()


def test_nothing_else_is_overwritten(source: Path, bucket: ObjectPath) -> None:
    (bucket / "gallery.zarr" / "letter.txt").write(b"dear reader")
    with pytest.raises(InputRejected, match="not a gallery"):
        ingest(source, bucket / "gallery.zarr", overwrite=True)
    assert bucket.files() == {"gallery.zarr/letter.txt": 11}


def test_one_ingest_at_a_time_and_a_killed_one_is_explained(
    source: Path, bucket: ObjectPath
) -> None:
    target = bucket / "gallery.zarr"
    claim(target / ".ingesting", "of another process", lineage="ab" * 16)
    zarr.create_group((target).zarr_store(read_only=False), zarr_format=3)
    for overwrite in (False, True):
        with pytest.raises(RunFailed, match=f"--lineage {'ab' * 16}"):
            ingest(source, target, overwrite=overwrite)
    assert not is_gallery(target)
    target.delete()
    assert ingest(source, target, lineage="ab" * 16).lineage == "ab" * 16


def test_the_command(source: Path, bucket: ObjectPath, tmp_path: Path) -> None:
    made = run_command(tmp_path, "ingest", str(source), str(bucket / "gallery.zarr"), "--json")
    assert made.returncode == 0, made.stderr
    assert made.json["gallery"] == str(bucket / "gallery.zarr")
    refused = run_command(tmp_path, "ingest", str(source), "s3://key:secret@bucket/gallery.zarr")
    assert refused.returncode == 2
    assert "secret@" not in refused.stdout + refused.stderr


def test_a_configuration_may_name_it(tmp_path: Path) -> None:
    path = tmp_path / "release.yaml"
    path.write_text(CONFIGURATION.format(gallery="s3://bucket/gallery.zarr"))
    assert load_config(path).gallery == ObjectPath("s3://bucket", "gallery.zarr")
    for wrong in ("s3://key:secret@bucket/gallery.zarr", "ftp://host/gallery"):
        path.write_text(CONFIGURATION.format(gallery=wrong))
        with pytest.raises(ConfigurationError, match="gallery: expected") as caught:
            load_config(path)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
