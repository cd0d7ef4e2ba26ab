"""The gallery on disk: its layout, its checks, reading panels and the content digest."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import IntegrityFailure
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.store import (
    CHUNK_BYTES,
    Gallery,
    chunk_rows,
    is_gallery,
    panels,
    stored_lineage,
)
from pipeline.ingest import ingest
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected

N, D = 50, 6


@pytest.fixture
def values():
    return np.random.default_rng(5).standard_normal((N, D))


@pytest.fixture
def gallery(tmp_path, monkeypatch, values) -> Gallery:
    """A gallery of five chunks of eleven rows, the last one shorter."""
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 11 * 4 * D)
    np.save(tmp_path / "a.npy", values)
    return ingest(tmp_path / "a.npy", tmp_path / "gallery.zarr")


def chunk(gallery: Gallery, row: int) -> Path:
    return gallery.path / "embeddings" / f"c.{row}.0"


def edit_attributes(gallery: Gallery, **changes: object) -> None:
    path = gallery.path / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["attributes"].update(changes)
    path.write_text(json.dumps(metadata))


@given(n=st.integers(2, 10**9), d=st.integers(1, 32768))
def test_chunks_are_whole_rows_of_about_four_mebibytes(n, d):
    rows = chunk_rows(n, d)
    assert 1 <= rows <= n
    assert 4 * d * rows <= CHUNK_BYTES
    assert rows == n or 4 * d * (rows + 1) > CHUNK_BYTES


@given(n=st.integers(0, 200), rows=st.integers(1, 50))
def test_panels_cover_every_row_once(n, rows):
    covered = [row for start, stop in panels(n, rows) for row in range(start, stop)]
    assert covered == list(range(n))
    assert all(stop - start <= rows for start, stop in panels(n, rows))


def test_layout_on_disk(gallery):
    group = json.loads((gallery.path / "zarr.json").read_text())
    assert group["zarr_format"] == 3
    assert group["attributes"] == {
        "scoreshield_gallery": 1,
        "lineage": gallery.lineage,
        "fraction_bits": 24,
        "n": N,
        "d": D,
        "zero_rows": "refuse",
        "substituted": 0,
        "source_kind": "npy",
    }
    array = json.loads((gallery.path / "embeddings" / "zarr.json").read_text())
    assert array["shape"] == [N, D]
    assert array["data_type"] == "float32"
    assert array["chunk_grid"]["configuration"]["chunk_shape"] == [11, D]
    assert [codec["name"] for codec in array["codecs"]] == ["bytes", "crc32c"]
    assert array["codecs"][0]["configuration"] == {"endian": "little"}
    assert array["fill_value"] == "NaN"


def test_chunk_bytes_are_the_rows_and_a_checksum(gallery, values):
    content = chunk(gallery, 1).read_bytes()
    assert len(content) == 11 * 4 * D + 4
    assert content[:-4] == to_fixed(values[11:22]).tobytes()


def test_open_gallery(gallery, monkeypatch):
    assert open_gallery(gallery.path) == gallery
    monkeypatch.chdir(gallery.path.parent)
    assert open_gallery("gallery.zarr") == gallery
    assert pickle.loads(pickle.dumps(gallery)) == gallery  # noqa: S301


def test_is_gallery(gallery, tmp_path):
    assert is_gallery(gallery.path)
    assert stored_lineage(gallery.path) == gallery.lineage
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "a.npy", gallery.path / "embeddings"):
        assert not is_gallery(path)
        assert stored_lineage(path) is None


def test_what_is_not_a_gallery(tmp_path):
    zarr.create_array(tmp_path / "array.zarr", data=np.ones((4, 3)))
    zarr.create_group(tmp_path / "group.zarr")
    (tmp_path / "broken.zarr").mkdir()
    (tmp_path / "broken.zarr" / "zarr.json").write_text("{broken")
    for name in ("array.zarr", "group.zarr", "broken.zarr", ""):
        with pytest.raises(InputRejected, match="found something else, expected a gallery"):
            open_gallery(tmp_path / name)
    with pytest.raises(InputRejected, match="found nothing, expected a gallery"):
        open_gallery(tmp_path / "nowhere")


def test_a_later_format_version(gallery):
    edit_attributes(gallery, scoreshield_gallery=2)
    with pytest.raises(InputRejected, match="format version 2, expected 1"):
        open_gallery(gallery.path)


@pytest.mark.parametrize("change", [{"n": 51}, {"d": None}, {"fraction_bits": 20}, {"lineage": ""}])
def test_contradicting_metadata(gallery, change):
    edit_attributes(gallery, **change)
    with pytest.raises(IntegrityFailure, match="metadata was changed"):
        open_gallery(gallery.path)


@pytest.mark.parametrize("remove", ["embeddings", "embeddings/zarr.json"])
def test_missing_array(gallery, remove):
    path = gallery.path.joinpath(remove)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(IntegrityFailure, match="missing or unreadable"):
        open_gallery(gallery.path)


@pytest.mark.parametrize("row", range(5))
def test_a_missing_chunk(gallery, row):
    chunk(gallery, row).unlink()
    with pytest.raises(IntegrityFailure, match=rf"1 of 5 chunks .*c\.{row}\.0 is missing"):
        open_gallery(gallery.path)
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        read_rows(gallery.path, 11 * row, 11 * row + 1)


def test_a_chunk_cut_short(gallery):
    os.truncate(chunk(gallery, 2), 100)
    with pytest.raises(IntegrityFailure, match=r"c\.2\.0 has 100 bytes"):
        open_gallery(gallery.path)


def test_a_flipped_bit(gallery):
    content = bytearray(chunk(gallery, 3).read_bytes())
    content[50] ^= 1
    chunk(gallery, 3).write_bytes(content)
    open_gallery(gallery.path)
    read_rows(gallery.path, 0, 33)
    with pytest.raises(IntegrityFailure, match=r"rows 30 to 39 .*a chunk is damaged"):
        read_rows(gallery.path, 30, 40)
    with pytest.raises(IntegrityFailure):
        content_digest(gallery)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.5, 0.1])
def test_rows_that_break_the_sensitivity_are_not_read(gallery, bad):
    """Written through Zarr, so the checksum is right: off the grid, too long, or not finite."""
    zarr.open_group(gallery.path, mode="r+")["embeddings"][7, 2] = bad
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        read_rows(gallery.path, 0, 11)


@pytest.mark.parametrize(("start", "stop"), [(0, N), (0, 1), (10, 12), (49, N), (5, 5), (11, 44)])
def test_read_rows(gallery, values, start, stop):
    rows = read_rows(gallery.path, start, stop)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, to_fixed(values)[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(0, N + 1), (-1, 3), (5, 4)])
def test_rows_outside_the_gallery(gallery, start, stop):
    with pytest.raises(IndexError, match="the gallery has 50 rows"):
        read_rows(gallery.path, start, stop)


def test_a_replaced_gallery_is_read_anew(gallery, tmp_path, values):
    read_rows(gallery.path, 0, N)
    np.save(tmp_path / "b.npy", values[:20, :4])
    ingest(tmp_path / "b.npy", gallery.path, overwrite=True)
    np.testing.assert_array_equal(read_rows(gallery.path, 0, 20), to_fixed(values[:20, :4]))


def test_reading_a_gallery_that_is_gone(gallery):
    read_rows(gallery.path, 0, N)
    shutil.rmtree(gallery.path)
    with pytest.raises(IntegrityFailure, match="is gone"):
        read_rows(gallery.path, 0, N)


def test_content_digest_is_sha256_of_the_stated_bytes(gallery, values):
    content = b"scoreshield gallery" + struct.pack("<3Q", 1, N, D) + to_fixed(values).tobytes()
    assert content_digest(gallery) == hashlib.sha256(content).digest()


def test_content_digest_depends_on_the_values_and_their_order(gallery, tmp_path, values):
    digests = {content_digest(gallery)}
    changed = values.copy()
    changed[31, 3] += 1e-3
    for number, other in enumerate((values[::-1], changed, values[:-1], np.abs(values))):
        np.save(tmp_path / "other.npy", other)
        digests.add(content_digest(ingest(tmp_path / "other.npy", tmp_path / f"{number}.zarr")))
    assert len(digests) == 5
