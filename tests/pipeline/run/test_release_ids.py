"""Ids that were declared public: in the release and its manifest, and nowhere near the noise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipeline.errors import ConfigurationError, IntegrityFailure, ParameterError
from pipeline.reader.description import render_markdown
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from tests.harness.curator import Curator, N, embeddings


def write_source(curator: Curator) -> list[str]:
    names = [f"product {row}" for row in range(N)]
    names[7] = "größtes"
    np.savez(curator.root / "source.npz", e=embeddings(), sku=names)
    return names


SETTINGS = {"gallery": "source.npz", "key": "e", "public_ids": "sku"}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A curator with a finished release with ids, which is not to be changed."""
    curator = Curator(tmp_path_factory.mktemp("labelled"))
    names = write_source(curator)
    return curator, curator.release(**SETTINGS), names


def test_a_release_carries_them(labelled: Any) -> None:
    curator, outcome, names = labelled
    opened = open_release(outcome.path)
    assert opened.ids == tuple(names)
    rows = opened.positions(["größtes", "product 3"])
    assert rows.tolist() == [7, 3]
    np.testing.assert_array_equal(
        opened.rows_of(["größtes", "product 3"]),
        np.concatenate([opened.rows(7, 8), opened.rows(3, 4)]),
    )
    assert opened.rows_of([]).shape == (0, opened.n)
    with pytest.raises(ParameterError, match=r"1 of 2 ids belong to no record.*'x'"):
        opened.positions(["product 1", "x"])
    report = verify_release(outcome.path)
    assert report.ok
    assert "ids" in {check.name for check in report.checks}
    assert opened.manifest.arrays["ids"].dtype == "uint8"
    assert "the ids of the records" in render_markdown(opened.manifest)
    stored = zarr.open_group(str(outcome.path / "release.zarr"), mode="r")["ids"][:]
    assert stored.view(f"S{stored.shape[1]}").ravel()[7].decode() == "größtes"
    curator.assert_spent_once(**SETTINGS)


def test_a_finished_release_is_the_same_with_and_without_them(labelled: Any) -> None:
    """Ids are no setting of a release: asking again with or without them spends nothing."""
    curator, outcome, _ = labelled
    again = curator.release(**{**SETTINGS, "public_ids": None})
    assert not again.newly
    assert again.path == outcome.path


@pytest.mark.filterwarnings("ignore::pipeline.reader.open.NotPrivateWarning")
def test_they_change_no_bit_of_the_noise(tmp_path: Path) -> None:
    made = []
    for folder, changes in (("with", SETTINGS), ("without", {**SETTINGS, "public_ids": None})):
        (tmp_path / folder).mkdir()
        curator = Curator(tmp_path / folder)
        write_source(curator)
        made.append(curator.release(unsafe_seed=7, **changes).manifest)
    assert made[0].noisy == made[1].noisy
    assert made[0].release_id == made[1].release_id
    assert made[0].arrays["gram"] == made[1].arrays["gram"]
    assert set(made[0].arrays) - set(made[1].arrays) == {"ids"}
    with_ids, without = (m.privacy.unprotected_quantities for m in made)
    assert with_ids == f"{without}, and so are the ids of the records"


def test_a_release_without_ids_says_so(finished: Any) -> None:
    with pytest.raises(ConfigurationError, match="--public-ids"):
        _ = open_release(finished.path).ids


def test_a_gallery_without_ids_can_not_be_asked_for_them(curator: Curator) -> None:
    from pipeline.ingest import ingest

    ingest(curator.root / "source.npy", curator.root / "made.zarr")
    with pytest.raises(ConfigurationError, match="a gallery without ids"):
        curator.release(gallery="made.zarr", public_ids="sku")


def test_scores_have_ids_of_their_records(curator: Curator) -> None:
    names = write_source(curator)
    queries = np.eye(16, dtype=np.float32)[:3]
    np.save(curator.root / "queries.npy", queries)
    curator.settings.pop("projection")
    outcome = curator.release(**SETTINGS, regime="scores", queries="queries.npy")
    opened = open_release(outcome.path)
    assert opened.ids == tuple(names)
    assert verify_release(outcome.path).ok
    with pytest.raises(ParameterError, match="queries, which have no ids"):
        opened.rows_of(["product 1"])


def test_changed_swapped_and_missing_ids_are_found(labelled: Any, tmp_path: Path) -> None:
    def damaged(name: str) -> Path:
        shutil.copytree(labelled[1].path, tmp_path / name / labelled[1].path.name)
        return tmp_path / name / labelled[1].path.name

    swapped = damaged("swapped")
    array = zarr.open_group(str(swapped / "release.zarr"), mode="r+")["ids"]
    array[[0, 1], :] = array[:][[1, 0], :]
    assert "digest of ids" in {check.name for check in verify_release(swapped).faults}

    missing = damaged("missing")
    (missing / "release.zarr" / "ids" / "c" / "0" / "0").unlink()
    assert not verify_release(missing).ok

    wider = damaged("wider")
    metadata = wider / "release.zarr" / "ids" / "zarr.json"
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "data_type": "int8"}))
    assert not verify_release(wider).ok
    with pytest.raises(IntegrityFailure, match="data_type"):
        open_release(wider)


@pytest.mark.parametrize("declared", [None, "other"])
def test_ids_that_were_withdrawn_or_put_right_since_are_not_published(
    tmp_path: Path, declared: str | None
) -> None:
    """They are no setting of a release, so the resumed run is the same one."""
    curator = Curator(tmp_path)
    names = write_source(curator)
    others = [f"article {row}" for row in range(N)]
    np.savez(curator.root / "source.npz", e=embeddings(), sku=names, other=others)
    curator.interrupt("publish", 1, **SETTINGS)
    (run,) = (tmp_path / "private" / "runs").iterdir()
    assert (run / "ids.npy").exists()
    outcome = curator.release(**{**SETTINGS, "public_ids": declared})
    assert outcome.newly
    opened = open_release(outcome.path)
    assert ("ids" in opened.manifest.arrays) == (declared is not None)
    if declared is not None:
        assert opened.ids == tuple(others)
    assert not (run / "ids.npy").exists()
