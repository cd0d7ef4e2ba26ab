"""The same values give the same gallery bytes, however they were stored."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest, open_source
from pipeline.ingest import write as write_module
from pipeline.storage.layout import EMBEDDINGS
from scoreshield.arithmetic.fixedpoint import to_fixed
from tests.harness.sources import save_npy, save_npz, save_npz_deflated, save_zarr


def integers_that_fit_every_type() -> NDArray[np.float64]:
    """Values that float16 and int8 hold exactly, so that every dtype stores the same matrix."""
    values = np.random.default_rng(7).integers(-100, 100, (60, 13)).astype(np.float64)
    values[:, 0] = 1
    return values


def stored_bytes(gallery_path: Path) -> dict[str, bytes]:
    """Chunk name to bytes: what is on disk, read without Zarr."""
    return {p.name: p.read_bytes() for p in sorted(Path(gallery_path, EMBEDDINGS).glob("c.*"))}


SAVED = {
    "npy, C order": save_npy,
    "npy, Fortran order": lambda f, v: save_npy(f, np.asfortranarray(v)),
    "npy, big-endian": lambda f, v: save_npy(f, v.astype(">f8")),
    "npy, big-endian float32, Fortran order": lambda f, v: save_npy(
        f, np.asfortranarray(v.astype(">f4"))
    ),
    "npz, stored": save_npz,
    "npz, stored, Fortran order": lambda f, v: save_npz(f, np.asfortranarray(v)),
    "npz, deflated": save_npz_deflated,
    "npz, deflated, Fortran order, big-endian": lambda f, v: save_npz_deflated(
        f, np.asfortranarray(v.astype(">f8"))
    ),
    "zarr v3": lambda f, v: save_zarr(f, v, chunks=(7, 13)),
    "zarr v3, chunked along features": lambda f, v: save_zarr(f, v, chunks=(60, 4)),
    "zarr v3, sharded": lambda f, v: save_zarr(f, v, chunks=(5, 13), shards=(20, 13)),
    "zarr v2": lambda f, v: save_zarr(f, v, chunks=(7, 5), zarr_format=2),
    "zarr v2, big-endian, Fortran order": lambda f, v: save_zarr(
        f, v.astype(">f8"), chunks=(64, 3), zarr_format=2, order="F"
    ),
}


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED.keys())
@pytest.mark.parametrize("panel_bytes", [write_module.PANEL_BYTES, 1])
def test_same_values_same_bytes(tmp_path, monkeypatch, save, panel_bytes):
    # One byte a panel means one chunk a panel; small chunks make that several panels.
    if panel_bytes == 1:
        monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 8 * 4 * 13)
    monkeypatch.setattr(write_module, "PANEL_BYTES", panel_bytes)
    values = integers_that_fit_every_type()
    reference = ingest(save_npy(tmp_path, values), tmp_path / "reference.zarr")
    np.testing.assert_array_equal(read_rows(reference.path, 0, 60), to_fixed(values))
    (tmp_path / "source").mkdir()
    gallery = ingest(save(tmp_path / "source", values), tmp_path / "gallery.zarr")
    assert stored_bytes(gallery.path) == stored_bytes(reference.path)
    assert len(stored_bytes(gallery.path)) == (8 if panel_bytes == 1 else 1)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
def test_every_numeric_type_reads_right(tmp_path, order, kind):
    values = integers_that_fit_every_type()
    values = np.abs(values) if kind.startswith("u") else values
    source = save_npy(tmp_path, values.astype(order + kind))
    gallery = ingest(source, tmp_path / "gallery.zarr")
    np.testing.assert_array_equal(read_rows(gallery.path, 0, 60), to_fixed(values))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("pipeline.gallery.store.CHUNK_BYTES", 4 * 13),
        ("pipeline.gallery.store.CHUNK_BYTES", 5 * 4 * 13),
        ("pipeline.gallery.store.CHUNK_BYTES", 3 * 2**20),
        ("pipeline.ingest.write._SLICE_VALUES", 30),
    ],
)
def test_chunks_and_slices_do_not_change_the_content(tmp_path, monkeypatch, place, value):
    source = save_npy(tmp_path, integers_that_fit_every_type())
    usual = content_digest(ingest(source, tmp_path / "usual.zarr"))
    monkeypatch.setattr(place, value)
    assert content_digest(ingest(source, tmp_path / "other.zarr")) == usual


def test_header_version_2_and_python_2_headers(tmp_path):
    values = integers_that_fit_every_type()
    expected = content_digest(ingest(save_npy(tmp_path, values), tmp_path / "reference.zarr"))
    for version, header in [
        (b"\x02\x00", b"{'descr': '<f8', 'fortran_order': False, 'shape': (60, 13), }"),
        (b"\x03\x00", b"{'descr': '<f8', 'fortran_order': False, 'shape': (60, 13), }"),
        (b"\x01\x00", b"{'descr': '<f8', 'fortran_order': False, 'shape': (60L, 13L), }"),
    ]:
        header += b" " * (117 - len(header)) + b"\n"
        length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
        path = tmp_path / "version.npy"
        path.write_bytes(b"\x93NUMPY" + version + length + header + values.tobytes())
        gallery = ingest(path, tmp_path / "gallery.zarr", overwrite=True)
        assert content_digest(gallery) == expected


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED.keys())
@pytest.mark.parametrize("rows", [1, 16, 59, 60, 61])
def test_panels_are_whole_and_in_native_byte_order(tmp_path, save, rows):
    values = integers_that_fit_every_type()
    source = open_source(save(tmp_path, values))
    found = list(source.panels(rows, tmp_path))
    assert source.shape == (60, 13)
    assert {len(panel) for panel in found[:-1]} <= {rows}
    assert all(panel.dtype.isnative for panel in found)
    np.testing.assert_array_equal(np.concatenate(found), values)


def test_chunks_taller_than_a_panel_are_decoded_once(tmp_path):
    values = integers_that_fit_every_type()
    path = save_zarr(tmp_path, values, chunks=(60, 4))
    remaining = open_source(path).panels(16, tmp_path)
    first = next(remaining)
    for chunk in (path / "c" / "0").iterdir():
        chunk.unlink()
    np.testing.assert_array_equal(np.concatenate([first, *remaining]), values)


FINITE = st.floats(-1e300, 1e300, allow_subnormal=True)


@settings(max_examples=25, deadline=None)
@given(
    values=hnp.arrays(
        np.float64, st.tuples(st.integers(2, 9), st.integers(1, 6)), elements=FINITE
    ).map(lambda a: np.where((a == 0).all(axis=1, keepdims=True), 1.0, a)),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 6)),
)
def test_any_finite_matrix_has_the_same_bytes_in_every_form(values, chunks):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = [
            save_npy(folder, np.asfortranarray(values)),
            save_npz(folder, np.asfortranarray(values.astype(">f8"))),
            save_zarr(folder, values, chunks=chunks),
        ]
        galleries = [ingest(s, folder / f"{i}.gallery") for i, s in enumerate(sources)]
        expected = to_fixed(values)
        for gallery in galleries:
            found = read_rows(gallery.path, 0, len(values))
            assert found.tobytes() == expected.tobytes()


def test_npz_member_beside_other_members(tmp_path):
    values = integers_that_fit_every_type()
    np.savez(tmp_path / "a.npz", labels=np.arange(60), train=values, test=values[::-1])
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README.txt", "not an array")
    gallery = ingest(tmp_path / "a.npz", tmp_path / "gallery.zarr", key="test")
    np.testing.assert_array_equal(read_rows(gallery.path, 0, 60), to_fixed(values[::-1]))


def test_nested_array_of_a_zarr_group(tmp_path):
    values = integers_that_fit_every_type()
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("X", data=np.ones((60, 2)))
    group.create_group("obsm").create_array("X_pca", data=values)
    gallery = ingest(tmp_path / "a.zarr", tmp_path / "gallery.zarr", key="obsm/X_pca")
    np.testing.assert_array_equal(read_rows(gallery.path, 0, 60), to_fixed(values))
