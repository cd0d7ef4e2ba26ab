"""Zip archives: Zarr in them becomes a gallery; what could lead elsewhere or explode is refused."""

from __future__ import annotations

import io
import json
import stat
import zipfile

import numpy as np
import pytest
import zarr

from tests.harness.sources import zipped

VALUES = np.random.default_rng(7).standard_normal((50, 6))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("prefix", ["", "a.zarr/"])
def test_a_zipped_array(tmp_path, holds, zarr_format, prefix):
    zarr.create_array(tmp_path / "a", data=VALUES, chunks=(7, 4), zarr_format=zarr_format)
    holds(zipped(tmp_path / "a.zarr.zip", tmp_path / "a", prefix), VALUES)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("prefix", ["", "a.zarr/"])
def test_a_zipped_group(tmp_path, holds, refused, zarr_format, prefix):
    group = zarr.create_group(tmp_path / "a", zarr_format=zarr_format)
    group.create_array("labels", data=np.arange(50))
    group.create_group("sets").create_array("train", data=VALUES.astype(">f4"))
    source = zipped(tmp_path / "a.zip", tmp_path / "a", prefix)
    assert "sets/train (shape (50, 6), " in refused(source)
    holds(source, VALUES.astype("f4"), key="sets/train")


def test_zarr_as_zarr_itself_zips_it(tmp_path, holds):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, data=VALUES, chunks=(7, 6), shards=(14, 6))
    holds(tmp_path / "a.zip", VALUES)


def link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("member", "found"),
    [
        ("../outside.npy", "leads out"),
        ("inside/../../outside.npy", "leads out"),
        ("..\\outside.npy", "leads out"),
        ("/etc/outside.npy", "absolute"),
        ("C:\\outside.npy", "absolute"),
        (link("outside.npy"), "is a link"),
        ("e.npy", "is there twice"),
    ],
    ids=str,
)
@pytest.mark.parametrize("suffix", [".npz", ".zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_lead_elsewhere(tmp_path, refused, member, found, suffix):
    saved = io.BytesIO()
    np.save(saved, VALUES)
    with zipfile.ZipFile(tmp_path / f"a{suffix}", "w") as archive:
        archive.writestr("e.npy", saved.getvalue())
        archive.writestr(member, saved.getvalue())
    assert found in refused(tmp_path / f"a{suffix}")
    assert not (tmp_path.parent / "outside.npy").exists()


def test_an_encrypted_member(tmp_path, refused):
    np.savez(tmp_path / "a.npz", e=VALUES)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(content)
    assert "is encrypted" in refused(tmp_path / "a.npz")


def test_a_chunk_that_would_explode_is_refused_unread(tmp_path, refused):
    """A megabyte of archive unpacks to a gigabyte, all of which a reader would allocate."""
    zarr.create_array(tmp_path / "a", data=VALUES, chunks=(7, 4), zarr_format=2)
    source = zipped(tmp_path / "a.zip", tmp_path / "a")
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(tmp_path / "a" / ".zarray", ".zarray")
        with archive.open("0.0", "w", force_zip64=True) as chunk:
            for _ in range(8):
                chunk.write(bytes(2**20))
    assert f"a member of {8 * 2**20} bytes (0.0)" in refused(source)


def test_metadata_that_would_explode_are_refused_unread(tmp_path, refused):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("zarr.json", b" " * (2**24 + 1))
    assert "found zarr.json of 16777217 bytes" in refused(tmp_path / "a.zip")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_claimed_sizes_are_refused_before_anything_is_allocated(tmp_path, refused, kind):
    """Missing chunks read as the fill value, so a few bytes of metadata can claim any size."""

    def claim(shape: list[int], chunks: list[int]) -> str:
        metadata = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4"}
        metadata |= {"order": "C", "fill_value": 1.0, "compressor": None, "filters": None}
        folder = tmp_path / "a"
        folder.mkdir(exist_ok=True)
        (folder / ".zarray").write_text(json.dumps(metadata))
        return refused(folder if kind == "folder" else zipped(tmp_path / "a.zip", folder))

    assert f"a gallery of {4 * 10**14} bytes" in claim([10**12, 100], [100, 100])
    assert "less than 2 GiB" in claim([10**9, 2], [10**9, 2])
