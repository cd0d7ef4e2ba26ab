"""Two hundred corruptions at random places: each is found, and an intact store is never blamed.

A noisy store is repaired, while the key exists, by making exactly the damaged blocks again with the
same bits. A release is immutable: its damage is named, and lazy reading refuses what it meets.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.perturb.keyfile import commitment, create_key, destroy_key
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.geometry import Triangle
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.storage import blocks
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import choose_encoding

KINDS = ("flipped", "truncated", "missing", "swapped", "extra")
EACH = 20
"""Of each kind, in the noisy store and in the release: 200 in all."""


@dataclass(frozen=True)
class Corruption:
    """Damage to one chunk, or two of the same size, of a store."""

    kind: str
    files: tuple[Path, ...]

    @classmethod
    def drawn(cls, kind: str, chunks: list[Path], draw: random.Random) -> Corruption:
        """Damage of a kind at a random place."""
        if kind == "extra":
            return cls(kind, (extra_name(draw.choice(chunks), draw),))
        first = draw.choice(chunks)
        if kind != "swapped":
            return cls(kind, (first,))
        content = first.read_bytes()
        others = [
            chunk
            for chunk in chunks
            if chunk.stat().st_size == len(content) and chunk.read_bytes() != content
        ]
        return cls(kind, (first, draw.choice(others))) if others else cls("flipped", (first,))

    def apply(self, draw: random.Random) -> Callable[[], None]:
        """Do the damage; the function that is returned undoes it."""
        contents = {file: file.read_bytes() if file.exists() else None for file in self.files}
        first = self.files[0]
        whole = contents[first] or b""
        if self.kind == "flipped":
            damaged = bytearray(whole)
            damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            first.write_bytes(damaged)
        elif self.kind == "truncated":
            first.write_bytes(whole[: draw.randrange(len(whole))])
        elif self.kind == "missing":
            first.unlink()
        elif self.kind == "swapped":
            second = self.files[1]
            first.write_bytes(second.read_bytes())
            second.write_bytes(whole)
        else:
            first.parent.mkdir(parents=True, exist_ok=True)
            first.write_bytes(draw.randbytes(64))

        def undo() -> None:
            for file, content in contents.items():
                if content is None:
                    file.unlink()
                    if not any(file.parent.iterdir()):
                        file.parent.rmdir()
                else:
                    file.write_bytes(content)

        return undo


def extra_name(chunk: Path, draw: random.Random) -> Path:
    """A chunk beyond the end of an array, or a stray file beside one."""
    beyond = chunk.with_name(str(900 + draw.randrange(100)))
    return draw.choice([beyond, chunk.with_name("copy"), chunk.parent / "9" / chunk.name])


def chunks_of(store: Path) -> list[Path]:
    return sorted(file for file in store.rglob("*") if file.is_file() and file.name != "zarr.json")


@pytest.fixture(scope="module", params=["float32", "int16"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PerturbJob:
    """A finished noisy store of 21 blocks, with receipts and its key."""
    n, d, run = 90, 6, tmp_path_factory.mktemp("run")
    np.save(run / "source.npy", np.random.default_rng(3).normal(size=(n, d)))
    gallery = ingest(run / "source.npy", run / "gallery.zarr")
    mechanism = calibrate_gram(n, d, 4.0, 1e-6)
    create_key(run / "key", content_digest(gallery), "gram-a", mechanism)
    (run / "receipts").mkdir()
    store, triangle = run / "noisy.zarr", Triangle(n, 16)
    blocks.create_store(store, triangle, choose_encoding(mechanism.sigma, request.param))
    made = PerturbJob(
        gallery=gallery.path,
        store=store,
        receipts=run / "receipts",
        key_file=run / "key",
        key_commitment=commitment(run / "key"),
        release_id="gram-a",
        mechanism=mechanism,
        geometry=triangle,
    )
    make_missing_blocks(made)
    return made


def make_missing_blocks(job: PerturbJob) -> None:
    """What a resumed run does."""
    blocks.create_store(job.store, job.geometry, blocks.encoding_of(job.store))
    for index in range(job.geometry.count):
        perturb_block(job, index)


def readable(job: PerturbJob, index: int) -> bool:
    try:
        blocks.read_block(job.store, job.geometry, index)
    except IntegrityFailure:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_corruption_of_the_noisy_store_is_found_and_repaired(
    job: PerturbJob, kind: str
) -> None:
    draw, store = random.Random(f"noisy {kind}"), job.store
    chunks = chunks_of(store)
    intact = {chunk: chunk.read_bytes() for chunk in chunks}
    for _ in range(EACH // 2):
        corruption = Corruption.drawn(kind, chunks, draw)
        undo = corruption.apply(draw)
        if kind == "extra":
            with pytest.raises(IntegrityFailure, match="does not belong there"):
                make_missing_blocks(job)
            undo()
            continue
        hit = sorted(int(file.relative_to(store).parts[2]) for file in corruption.files)
        assert blocks.damaged_blocks(job.store, job.geometry) == hit
        assert not any(readable(job, index) for index in hit)
        times = {chunk: chunk.stat().st_mtime_ns for chunk in chunks if chunk.exists()}
        make_missing_blocks(job)
        assert {chunk: chunk.read_bytes() for chunk in chunks_of(store)} == intact
        again = [chunk for chunk in chunks if chunk.stat().st_mtime_ns != times.get(chunk)]
        assert again == sorted(corruption.files), "only what was damaged is made again"
    assert blocks.damaged_blocks(job.store, job.geometry) == []
    assert all(readable(job, index) for index in range(job.geometry.count))


def test_what_a_killed_worker_left_of_a_write_is_swept(job: PerturbJob) -> None:
    left = chunks_of(job.store)[0].with_name("0.5f1c.partial")
    left.write_bytes(b"half")
    make_missing_blocks(job)
    assert not left.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_every_corruption_of_a_release_is_found(
    release_copy: Callable[..., Path], kind: str
) -> None:
    draw, release = random.Random(f"release {kind}"), release_copy()
    chunks = chunks_of(release / "release.zarr")
    for _ in range(EACH):
        corruption = Corruption.drawn(kind, chunks, draw)
        undo = corruption.apply(draw)
        report = verify_release(release)
        assert not report.ok, corruption
        if corruption.kind not in ("extra", "swapped"):
            named = corruption.files[0].relative_to(release / "release.zarr").as_posix()
            assert named in " ".join(check.detail for check in report.faults), corruption
            with pytest.raises(IntegrityFailure):
                read_everything(release)
        undo()
    assert verify_release(release).ok
    read_everything(release)


def read_everything(path: Path) -> None:
    """Every array that a consumer may read, in the way he reads it."""
    release = open_release(path)
    release.rows(0, release.n)
    assert release.factor[:].shape[0] == release.diagonal[:].size == release.n


def test_without_the_key_nothing_is_repaired(job: PerturbJob) -> None:
    chunk = chunks_of(job.store)[3]
    content, key = chunk.read_bytes(), job.key_file.read_bytes()
    chunk.unlink()
    destroy_key(job.key_file)
    try:
        with pytest.raises(IntegrityFailure, match="missing or damaged"):
            make_missing_blocks(job)
        assert not chunk.exists()
    finally:
        chunk.write_bytes(content)
        handle = os.open(job.key_file, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
