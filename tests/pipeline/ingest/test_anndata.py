"""AnnData: embeddings in obsm by their names, in .h5ad files and Zarr stores alike."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from tests.harness.sources import zipped

anndata = pytest.importorskip("anndata")

pytestmark = pytest.mark.filterwarnings("ignore:Writing zarr v2")
VALUES = np.random.default_rng(8).standard_normal((20, 6))


@pytest.fixture(params=["h5ad", "zarr", "zip"])
def written(request, tmp_path):
    """Write an AnnData object in each of the ways in which it is kept."""

    def write(**obsm):
        counts = scipy.sparse.random(20, 9, 0.3, "csr", random_state=1)
        data = anndata.AnnData(counts, obsm=obsm)
        data.obs["label"] = [str(row % 3) for row in range(20)]
        if request.param == "h5ad":
            data.write_h5ad(tmp_path / "a.h5ad")
            return tmp_path / "a.h5ad"
        data.write_zarr(tmp_path / "a.zarr")
        stored = tmp_path / "a.zarr"
        return stored if request.param == "zarr" else zipped(tmp_path / "a.zip", stored)

    return write


def test_the_only_embedding_needs_no_key(written, holds):
    holds(written(X_pca=VALUES), VALUES)


def test_one_of_several(written, holds, refused):
    source = written(X_pca=VALUES, X_umap=VALUES[:, :2], sparse=scipy.sparse.csr_matrix(VALUES))
    message = refused(source)
    assert "It holds: obsm/X_pca (shape (20, 6), float64); obsm/X_umap" in message
    assert "sparse matrix" in refused(source, key="sparse")
    assert "sparse matrix" in refused(source, key="X")
    assert "no array 'X_tsne'" in refused(source, key="X_tsne")
    holds(source, VALUES, key="X_pca")
    holds(source, VALUES[:, :2], key="obsm/X_umap")
