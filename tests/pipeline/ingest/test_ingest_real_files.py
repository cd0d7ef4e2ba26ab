"""Files as people keep them, when the data folder beside the repository is present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.gallery import read_rows
from pipeline.ingest import ingest
from scoreshield.errors import InputRejected

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
    ("name", "found"),
    [
        ("formats/py3-objarr.npy", "Python objects"),
        ("stsb-dev/dev_gold.npy", "1-D array of shape (1500,)"),
        ("formats/lee_fasttext.vec", "a file ending in '.vec'"),
    ],
)
def test_real_files_that_are_refused(tmp_path, name, found):
    with pytest.raises(InputRejected) as caught:
        ingest(present(name), tmp_path / "gallery.zarr")
    assert found in str(caught.value)
