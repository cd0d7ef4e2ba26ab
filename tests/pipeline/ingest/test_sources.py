"""From what a configuration names to a gallery, with a lineage that follows the source."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError, InputRejected
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.ingest.sources import known_gallery, prepare_gallery, source_shape
from tests.harness.reporters import Told


def write(path: Path, seed: int = 1, n: int = 20) -> None:
    np.save(path, np.random.default_rng(seed).normal(size=(n, 4)))


def configure(folder: Path, gallery: str = "faces.npy", extra: str = "") -> Config:
    path = folder / "release.yaml"
    path.write_text(
        f"gallery: {gallery}\n"
        "privacy: {epsilon: 1.0, delta: 1e-6, adjacency: record}\n"
        "ledger: {url: 'sqlite:///ledger.db', epsilon: 2.0, delta: 1e-5}\n" + extra
    )
    return load_config(path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """That of 20 records in ``faces.npy``."""
    write(tmp_path / "faces.npy")
    return configure(tmp_path)


def test_a_source_is_ingested_once(tmp_path: Path, config: Config) -> None:
    told = Told()
    assert known_gallery(config) is None
    assert source_shape(config) == (20, 4)
    gallery = prepare_gallery(config, told)
    assert (gallery.n, gallery.d) == (20, 4)
    assert prepare_gallery(config, told) == gallery == known_gallery(config)
    assert told.begun == [("ingest", 20)]
    assert gallery.path.is_relative_to(tmp_path / "private" / "galleries")
    assert gallery.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_changed_source_is_ingested_again_under_the_same_lineage(
    tmp_path: Path, config: Config
) -> None:
    before = prepare_gallery(config, Told())
    digest = content_digest(before)
    write(tmp_path / "faces.npy", 2)
    assert known_gallery(config) is None
    after = prepare_gallery(config, Told())
    assert after.lineage == before.lineage
    assert content_digest(after) != digest


@pytest.mark.parametrize("change", ["time", "size"])
def test_time_or_size_tells_a_changed_source(tmp_path: Path, config: Config, change: str) -> None:
    prepare_gallery(config, Told())
    status = os.stat(tmp_path / "faces.npy")
    if change == "time":
        os.utime(tmp_path / "faces.npy", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        write(tmp_path / "faces.npy", n=21)
        os.utime(tmp_path / "faces.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert known_gallery(config) is None


def test_how_zero_rows_are_read_is_part_of_the_source(tmp_path: Path, config: Config) -> None:
    prepare_gallery(config, Told())
    assert known_gallery(configure(tmp_path, extra="zero_rows: substitute\n")) is None


def test_a_copy_that_is_gone_or_was_never_finished_is_made_again(
    tmp_path: Path, config: Config
) -> None:
    gallery = prepare_gallery(config, Told())
    (gallery.path.parent / "source.json").write_text("{")
    assert prepare_gallery(config, Told()) == gallery
    gallery.path.rename(tmp_path / "moved")
    assert known_gallery(config) is None
    assert prepare_gallery(config, Told()).n == 20


def test_the_key_chooses_the_array_and_each_has_its_own_copy(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "both.npz", a=random.normal(size=(20, 4)), b=random.normal(size=(30, 5)))
    first = prepare_gallery(configure(tmp_path, "both.npz", "key: a\n"), Told())
    second = prepare_gallery(configure(tmp_path, "both.npz", "key: b\n"), Told())
    assert (first.n, first.d, second.n, second.d) == (20, 4, 30, 5)
    assert first.path != second.path
    assert first.lineage != second.lineage
    with pytest.raises(InputRejected):
        prepare_gallery(configure(tmp_path, "both.npz"), Told())


def test_a_gallery_is_used_where_it_lies(tmp_path: Path) -> None:
    write(tmp_path / "faces.npy")
    made = ingest(tmp_path / "faces.npy", tmp_path / "faces.zarr")
    told = Told()
    assert prepare_gallery(configure(tmp_path, "faces.zarr"), told) == made
    assert source_shape(configure(tmp_path, "faces.zarr")) == (20, 4)
    assert told.begun == []
    assert not (tmp_path / "private").exists()


def test_a_zarr_source_changes_with_any_of_its_files(tmp_path: Path) -> None:
    import zarr

    array = zarr.create_array(tmp_path / "raw.zarr", shape=(20, 4), chunks=(5, 4), dtype="f8")
    array[:] = np.random.default_rng(1).normal(size=(20, 4))
    config = configure(tmp_path, "raw.zarr")
    gallery = prepare_gallery(config, Told())
    assert known_gallery(config) == gallery
    array[3] = 1.0
    assert known_gallery(config) is None


@pytest.mark.parametrize("changed", [False, True])
def test_a_configured_lineage_never_replaces_another(tmp_path: Path, changed: bool) -> None:
    write(tmp_path / "faces.npy")
    gallery = prepare_gallery(configure(tmp_path), Told())
    if changed:
        write(tmp_path / "faces.npy", 2)
    own = configure(tmp_path, extra=f"lineage: {gallery.lineage}\n")
    other = configure(tmp_path, extra=f"lineage: '{'1' * 32}'\n")
    with pytest.raises(ConfigurationError, match=r"has lineage .*, the configuration says 1111"):
        prepare_gallery(other, Told())
    assert prepare_gallery(own, Told()).lineage == gallery.lineage


def test_a_configured_lineage_is_given_to_a_first_copy(tmp_path: Path) -> None:
    write(tmp_path / "faces.npy")
    config = configure(tmp_path, extra=f"lineage: '{'1' * 32}'\n")
    assert prepare_gallery(config, Told()).lineage == "1" * 32


def test_a_missing_source_leaves_nothing_behind(tmp_path: Path) -> None:
    config = configure(tmp_path)
    assert known_gallery(config) is None
    for ask in (source_shape, lambda config: prepare_gallery(config, Told())):
        with pytest.raises(InputRejected, match=r"faces\.npy"):
            ask(config)
    assert [entry.name for entry in tmp_path.iterdir()] == ["release.yaml"]


def test_a_long_name_still_has_a_copy(tmp_path: Path) -> None:
    name = "f" * 250 + ".npy"
    write(tmp_path / name)
    assert prepare_gallery(configure(tmp_path, name), Told()).n == 20


def test_several_at_once_make_one_copy(tmp_path: Path) -> None:
    write(tmp_path / "faces.npy", n=3000)
    config, told = configure(tmp_path), Told()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare_gallery(config, told)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert told.begun == [("ingest", 3000)]
    assert read_rows(found[0].path, 0, 3000).shape == (3000, 4)


def test_a_damaged_note_of_the_source_is_no_note(tmp_path: Path, config: Config) -> None:
    note = prepare_gallery(config, Told()).path.parent / "source.json"
    assert "faces" not in json.dumps(json.loads(note.read_text()))
    note.write_bytes(b"\xff\xfe")
    assert known_gallery(config) is None
