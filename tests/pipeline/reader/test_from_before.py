"""Releases and a gallery that version 0.1.0 wrote before the code was ordered anew still open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import IntegrityFailure
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.reader.description import render_markdown
from pipeline.reader.manifest_file import check_layout, verify_manifest
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release

KEPT = Path(__file__).resolve().parents[2] / "known_answers" / "from_before"
GALLERY_DIGEST = "0ca60c6e256fb36adc3cf3b8a4380c082a69cacde047a96a33046913d2628193"


@pytest.mark.parametrize("name", ["gram-from-before", "scores-from-before"])
def test_a_release_verifies_and_is_described(name: str) -> None:
    report = verify_release(KEPT / name)
    assert [check.name for check in report.checks if not check.ok] == []
    manifest = open_release(KEPT / name).manifest
    assert manifest.signature is not None
    assert verify_manifest(KEPT / name, manifest.signature.public_key) == manifest
    assert manifest.privacy.statement in render_markdown(manifest)


def test_a_gram_reads_as_the_product_of_its_factor() -> None:
    release = open_release(KEPT / "gram-from-before")
    factor = release.factor[:, :].astype(np.float64)
    expected = factor @ factor.T
    np.fill_diagonal(expected, 1.0)
    everything = slice(0, release.n)
    np.testing.assert_allclose(release.block(everything, everything), expected, atol=1e-6)


def test_scores_read_as_they_were_published() -> None:
    release = open_release(KEPT / "scores-from-before")
    scores = release.block(slice(0, 3), slice(0, release.n))
    assert scores.shape == (3, 40)
    np.testing.assert_array_equal(scores, release.scores[:, :])


def test_a_gallery_has_the_digest_that_keys_were_bound_to() -> None:
    gallery = open_gallery(KEPT / "gallery.zarr")
    assert (gallery.n, gallery.d, gallery.sparse) == (40, 6, False)
    assert content_digest(gallery).hex() == GALLERY_DIGEST
    assert np.linalg.norm(read_rows(gallery.path, 0, 40), axis=1).max() <= 1.0


@pytest.mark.parametrize("shape", [(), (40,), (40, 3, 3)])
def test_a_factor_of_another_shape_is_refused_in_words(shape: tuple[int, ...]) -> None:
    manifest = open_release(KEPT / "gram-from-before").manifest
    factor = manifest.arrays["factor"].model_copy(update={"shape": shape})
    arrays = {**manifest.arrays, "factor": factor}
    with pytest.raises(IntegrityFailure, match="describes an array 'factor' of shape"):
        check_layout(manifest.model_copy(update={"arrays": arrays}))
