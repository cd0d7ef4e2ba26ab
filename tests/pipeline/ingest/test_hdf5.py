"""HDF5: datasets and fields become galleries; nothing outside the file is ever read."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ingest import chunked

h5py = pytest.importorskip("h5py")

VALUES = np.random.default_rng(6).standard_normal((50, 6))


@pytest.mark.parametrize("dtype", [">f8", "<f4", "f2", ">i2", "u1"])
@pytest.mark.parametrize("chunks", [None, (7, 4), (50, 2)])
def test_a_dataset(tmp_path, holds, monkeypatch, dtype, chunks):
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 4 * 6 * 3)
    monkeypatch.setattr("pipeline.ingest.write.PANEL_BYTES", 8 * 6 * 12)
    values = np.clip(np.abs(VALUES) * 50 + 1, 1, 200).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("e", data=values, chunks=chunks, compression=chunks and "gzip")
    holds(tmp_path / "a.h5", values)


def test_several_datasets_need_a_key(tmp_path, holds, refused):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["train/e"] = VALUES
        file["labels"] = np.arange(50)
        file["names"] = [str(row) for row in range(50)]
    message = refused(tmp_path / "a.hdf5")
    assert "train/e (shape (50, 6), float64); labels (shape (50,), int64)" in message
    assert "text" in refused(tmp_path / "a.hdf5", key="names")
    assert "no array 'x'" in refused(tmp_path / "a.hdf5", key="x")
    assert "no array 'labels/x'" in refused(tmp_path / "a.hdf5", key="labels/x")
    holds(tmp_path / "a.hdf5", VALUES, key="train/e")


@pytest.mark.parametrize("chunks", [None, (7,)])
def test_a_field_of_a_compound_dataset(tmp_path, holds, refused, chunks):
    records = np.zeros(50, dtype=[("pca", ">f4", (6,)), ("umap", "f8", (2,)), ("size", "i8")])
    records["pca"] = VALUES
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("obsm", data=records, chunks=chunks)
    holds(tmp_path / "a.h5", VALUES.astype("f4"), key="obsm/pca")
    assert "obsm/umap (shape (50, 2), float64)" in refused(tmp_path / "a.h5")
    assert "1-D" in refused(tmp_path / "a.h5", key="obsm/size")


def test_ragged_rows_are_objects(tmp_path, refused):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        ragged = file.create_dataset("e", (4,), dtype=h5py.vlen_dtype(np.float32))
        ragged[0] = [1.0, 2.0]
    assert "Python objects" in refused(tmp_path / "a.h5")


def test_what_lies_in_other_files_is_never_read(tmp_path, refused):
    """A source could otherwise name any file that the operator can read."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["e"] = VALUES
    VALUES.tofile(tmp_path / "secret.bin")
    layout = h5py.VirtualLayout(shape=VALUES.shape, dtype=VALUES.dtype)
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "e", shape=VALUES.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink("secret.h5", "e")
        file["group"] = h5py.ExternalLink("secret.h5", "/")
        file["soft"] = h5py.SoftLink("/link")
        file.create_virtual_dataset("virtual", layout)
        external = [(str(tmp_path / "secret.bin"), 0, VALUES.nbytes)]
        file.create_dataset("external", VALUES.shape, VALUES.dtype, external=external)
    assert "link to another file" in refused(tmp_path / "a.h5", key="link")
    assert "link to another file" in refused(tmp_path / "a.h5", key="group/e")
    assert "no array 'soft'" in refused(tmp_path / "a.h5", key="soft")
    assert "virtual dataset" in refused(tmp_path / "a.h5", key="virtual")
    assert "external storage" in refused(tmp_path / "a.h5", key="external")


def test_claimed_sizes_are_refused_before_anything_is_allocated(tmp_path, refused, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("empty", (10**12, 100), "f4")
        sparse = file.create_dataset("sparse", (10**12, 100), "f4", chunks=(10, 100))
        sparse[:10] = 1.0
        file.create_dataset("chunk", data=VALUES, chunks=VALUES.shape)
    assert "never written" in refused(tmp_path / "a.h5", key="empty")
    message = refused(tmp_path / "a.h5", key="sparse")
    assert f"a gallery of {4 * 10**14} bytes" in message
    monkeypatch.setattr(chunked, "LARGEST_CHUNK_BYTES", VALUES.nbytes - 1)
    assert "chunks of shape (50, 6)" in refused(tmp_path / "a.h5", key="chunk")
