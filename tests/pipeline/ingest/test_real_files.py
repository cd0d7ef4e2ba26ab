"""Files as people keep them, when the data folder beside the repository is present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.gallery.dense import read_rows
from pipeline.gallery.store import stored_ids
from pipeline.ingest import ingest
from pipeline.storage.ids import decode

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"


def present(name: str) -> Path:
    path = (DATA / name).resolve()
    if not path.exists():
        pytest.skip(f"{name} is not in the data folder beside the repository")
    return path


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("formats/artembed_2d.npy", (2646, 2)),
        ("xquad-en/passages_emb_f32.npy", (240, 384)),
        ("xquad-en/questions_emb_f32.npy", (1190, 384)),
        ("stsb-dev/dev_unique_emb_f32.npy", (2910, 384)),
    ],
)
def test_real_embeddings(tmp_path, name, shape):
    source = present(name)
    gallery = ingest(source, tmp_path / "gallery.zarr")
    assert (gallery.n, gallery.d) == shape
    values = np.load(source).astype(np.float64)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    # Shrinking and rounding move a coordinate by at most (½√d + ½)·2^-24, here under 11·2^-24.
    difference = np.abs(read_rows(gallery.path, 0, gallery.n) - unit)
    assert difference.max() < 11 * 2.0**-24


@pytest.mark.parametrize(
    ("name", "key", "found"),
    [
        ("formats/py3-objarr.npy", None, "Python objects"),
        ("stsb-dev/dev_gold.npy", None, "1-D array of shape (1500,)"),
        ("formats/vlen_string_s390x.h5", None, "holds 5 arrays, none of them 2-D"),
        ("formats/10x_pbmc68k_reduced.h5ad", None, "obsm/X_umap (shape (700, 2), float64)"),
        ("formats/10x_pbmc68k_reduced.h5ad", "raw.X", "a sparse matrix"),
        ("formats/anndata_v0.7.0.zarr.zip", "sparse", "a sparse matrix"),
        ("formats/anndata_v0.7.0.zarr.zip", "df", "a table"),
        ("formats/vlen_string_s390x.h5", "DSBEfloat", "1-D array of shape (5,)"),
        ("formats/vlen_string_s390x.h5", "DSvariable", "text"),
        ("formats/firstai_embeddings.parquet", "slug", "text"),
    ],
)
def test_real_files_that_are_refused(refused, name, key, found):
    assert found in refused(present(name), key=key)


@pytest.mark.parametrize(
    ("name", "key", "public_ids", "expected"),
    [
        ("10x_pbmc68k_reduced.h5ad", "X_pca", "obs_names", "AAAGCCTGGCTAAC-1"),
        ("anndata_v0.7.0.zarr.zip", None, "obs_names", "cell0"),
        ("firstai_embeddings.parquet", None, "local_url", None),
        ("lee_fasttext.vec", None, "words", "the"),
    ],
)
def test_the_ids_of_real_files(tmp_path, name, key, public_ids, expected):
    source = present(f"formats/{name}")
    gallery = ingest(source, tmp_path / "gallery.zarr", key=key, public_ids=public_ids)
    found = decode(stored_ids(gallery, 0, gallery.n))
    assert len(set(found)) == gallery.n
    assert expected in (None, found[0])


def parquet_values(source: Path) -> np.ndarray:
    column = pytest.importorskip("pyarrow.parquet").read_table(source)["embedding"]
    return np.array(column.to_pylist(), dtype=np.float32)


def obsm_values(source: Path) -> np.ndarray:
    with pytest.importorskip("h5py").File(source) as file:
        return np.array(file["obsm"][:]["X_pca"])


def zipped_values(source: Path) -> np.ndarray:
    with zarr.storage.ZipStore(source, mode="r") as store:
        return np.array(zarr.open_group(store, mode="r")["obsm/array"])


def word_values(source: Path) -> np.ndarray:
    return np.loadtxt(source, skiprows=1, usecols=range(1, 11), encoding="utf-8", comments=None)


@pytest.mark.parametrize(
    ("name", "key", "shape", "values"),
    [
        ("firstai_embeddings.parquet", None, (829, 384), parquet_values),
        ("10x_pbmc68k_reduced.h5ad", "X_pca", (700, 50), obsm_values),
        ("anndata_v0.7.0.zarr.zip", None, (30, 50), zipped_values),
        ("lee_fasttext.vec", None, (1762, 10), word_values),
    ],
)
def test_real_files_as_people_keep_them(tmp_path, holds, name, key, shape, values):
    source = present(f"formats/{name}")
    expected = values(source)
    assert expected.shape == shape
    holds(source, expected, key=key)
