"""The target appears complete or not at all, and nothing else is ever replaced."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.errors import RunFailed
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.store import is_gallery
from pipeline.ingest import ingest
from scoreshield.errors import InputRejected, ParameterError

LINEAGE = "0123456789abcdef0123456789abcdef"

KILLED = """
import os, signal, sys
from pipeline.ingest import ingest
ingest(sys.argv[1], sys.argv[2], overwrite=True,
       progress=lambda done: os.kill(os.getpid(), signal.SIGKILL))
"""

FULL_DISK = """
import resource, sys
from pipeline.errors import RunFailed
from pipeline.ingest import ingest
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ingest(sys.argv[1], sys.argv[2])
except RunFailed as error:
    print(error)
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.random.default_rng(1).standard_normal((300, 8)))
    return tmp_path / "in" / "a.npy"


@pytest.fixture
def other(tmp_path, source):
    np.save(tmp_path / "in" / "b.npy", np.random.default_rng(2).standard_normal((200, 5)))
    return tmp_path / "in" / "b.npy"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out" / "gallery.zarr"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_gallery_is_private_and_alone(source, target):
    ingest(source, target)
    assert names(target.parent) == ["gallery.zarr"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert names(target) == ["embeddings", "zarr.json"]


def test_overwrites_when_asked_and_keeps_the_lineage(source, other, target):
    first = ingest(source, target)
    second = ingest(other, target, overwrite=True)
    assert (second.n, second.d) == (200, 5)
    assert second.lineage == first.lineage
    assert names(target.parent) == ["gallery.zarr"]


def test_overwriting_through_a_link_replaces_what_it_points_to(source, other, target):
    ingest(source, target)
    link = target.with_name("link.zarr")
    link.symlink_to(target)
    assert ingest(other, link, overwrite=True).path == target.resolve()
    assert link.is_symlink()
    assert open_gallery(link) == open_gallery(target)
    assert names(target.parent) == ["gallery.zarr", "link.zarr"]


def test_a_refused_overwrite_leaves_the_old_gallery(source, tmp_path, target):
    first = ingest(source, target)
    digest = content_digest(first)
    np.save(tmp_path / "bad.npy", np.zeros((4, 4)))
    with pytest.raises(InputRejected):
        ingest(tmp_path / "bad.npy", target, overwrite=True)
    assert content_digest(open_gallery(target)) == digest
    assert names(target.parent) == ["gallery.zarr"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_a_gallery_is_never_overwritten(source, target, overwrite):
    target.mkdir(parents=True)
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(InputRejected, match="is not a gallery"):
        ingest(source, target, overwrite=overwrite)
    assert (target / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_overwritten(source, other, overwrite):
    with pytest.raises(InputRejected, match="is not a gallery"):
        ingest(source, other, overwrite=overwrite)
    assert np.load(other).shape == (200, 5)


def test_a_killed_ingest_leaves_no_gallery_and_the_next_one_sweeps(source, target):
    killed = run(KILLED, source, target)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert names(target.parent) == [".gallery.zarr.ingesting"]
    gallery = ingest(source, target)
    assert open_gallery(target) == gallery
    assert names(target.parent) == ["gallery.zarr"]


def test_a_killed_overwrite_leaves_the_old_gallery(source, other, target):
    first = ingest(source, target)
    digest = content_digest(first)
    run(KILLED, other, target)
    assert content_digest(open_gallery(target)) == digest


def test_killed_between_the_two_renames_of_an_overwrite(source, other, target):
    first = ingest(source, target)
    os.rename(target, target.with_name(".gallery.zarr.replaced"))
    with pytest.raises(InputRejected, match="exists there already"):
        ingest(other, target)
    assert open_gallery(target) == first
    os.rename(target, target.with_name(".gallery.zarr.replaced"))
    assert ingest(other, target, overwrite=True).lineage == first.lineage
    assert names(target.parent) == ["gallery.zarr"]


def test_a_full_disk_says_so_and_leaves_nothing(source, target):
    result = run(FULL_DISK, source, target)
    assert "could not be written" in result.stdout, result.stderr
    assert "File too large" in result.stdout
    assert names(target.parent) == []


def test_a_full_scratch_disk_is_not_blamed_on_the_source(source, tmp_path, target):
    np.savez(tmp_path / "in" / "f.npz", np.asfortranarray(np.load(source)))
    result = run(FULL_DISK, tmp_path / "in" / "f.npz", target)
    assert "could not be written" in result.stdout, result.stderr


def test_two_ingests_of_one_target(source, target):
    def second(done: int) -> None:
        with pytest.raises(RunFailed, match="another ingest"):
            ingest(source, target)

    gallery = ingest(source, target, progress=second)
    assert open_gallery(target) == gallery


def test_an_interrupted_ingest_leaves_nothing(source, target):
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(source, target, progress=interrupt)
    assert names(target.parent) == []


def test_every_new_gallery_has_the_lineage_given_or_its_own(source, target):
    first, second = (ingest(source, target.with_name(name)) for name in ("a.zarr", "b.zarr"))
    assert first.lineage != second.lineage
    assert len(first.lineage) == 32
    assert ingest(source, target, lineage=LINEAGE).lineage == LINEAGE


@pytest.mark.parametrize("lineage", ["", "abc", LINEAGE.upper(), LINEAGE + "0", LINEAGE + "\n"])
def test_lineage_must_be_hexadecimal(source, target, lineage):
    with pytest.raises(ParameterError, match="32 hexadecimal digits"):
        ingest(source, target, lineage=lineage)
    assert not is_gallery(target)


@pytest.mark.parametrize("inside", ["", "embeddings"])
def test_a_gallery_of_a_gallery_draws_on_the_same_budget(source, target, inside):
    first = ingest(source, target)
    second = ingest(target / inside, target.with_name("copy.zarr"))
    assert second.lineage == first.lineage
    assert (second.n, second.d) == (first.n, first.d)


def test_a_gallery_within_a_larger_group_draws_on_the_same_budget(source, tmp_path, target):
    zarr.create_group(tmp_path / "all.zarr")
    first = ingest(source, tmp_path / "all.zarr" / "people")
    second = ingest(tmp_path / "all.zarr", target, key="people/embeddings")
    assert second.lineage == first.lineage


def test_a_linked_gallery_draws_on_the_same_budget(source, target):
    first = ingest(source, target)
    link = target.with_name("link.zarr")
    link.symlink_to(target / "embeddings")
    assert ingest(link, target.with_name("copy.zarr")).lineage == first.lineage


def test_a_gallery_can_be_ingested_onto_itself(source, target):
    first = ingest(source, target)
    assert ingest(target, target, overwrite=True) == first
