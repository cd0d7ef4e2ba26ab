"""Releases in an object store: the bits of one on disk, one publisher, whole or not there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from pipeline import publish
from pipeline.cli import cli
from pipeline.config import Config, load_config
from pipeline.errors import BudgetRefused, ConfigurationError, IntegrityFailure, RunFailed
from pipeline.ingest import ingest
from pipeline.object_path import DEADLINE, ObjectPath
from pipeline.open import open_release
from pipeline.place import Place
from pipeline.release import abandon, release
from pipeline.status import account_of, release_status
from pipeline.verify import verify_release

N, D, SIDE = 150, 16, 64
"""Six blocks, the last ones with an edge."""


class Silent:
    """A reporter that reports to nobody."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        pass

    def advance(self, done: int, **figures: Any) -> None:
        pass

    def end(self, **figures: Any) -> None:
        pass

    def note(self, event: str, **figures: Any) -> None:
        pass


class Interrupted(Exception):
    """Ends a run in this process at a chosen moment."""


class InterruptAt(Silent):
    """A reporter that raises once ``done`` units of ``stage`` are finished."""

    def __init__(self, stage: str, done: int) -> None:
        self._wanted, self._done, self._stage = stage, done, ""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage = stage

    def advance(self, done: int, **figures: Any) -> None:
        if self._stage == self._wanted and done == self._done:
            raise Interrupted


Configure = Callable[..., Config]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.npy"
    np.save(path, (np.random.default_rng(1).normal(size=(N, D)) + 1.5).astype(np.float32))
    return path


@pytest.fixture
def configure(source: Path, tmp_path: Path) -> Configure:
    """Configurations of one source, each in a folder of its own."""

    def make(folder: str = "curator", **changes: Any) -> Config:
        settings = {
            "gallery": str(source),
            "release": "gram",
            "privacy": {"epsilon": 50.0, "delta": 1e-6, "adjacency": "record"},
            "projection": {"method": "shrink"},
            "block_side": SIDE,
            "ledger": {
                "url": "sqlite:///ledger.db",
                "epsilon": 75.0,
                "delta": 1e-6,
                "create": True,
            },
            "cluster": {"workers": 1, "memory_limit": "1GiB"},
            **{
                name: str(value) if isinstance(value, ObjectPath) else value
                for name, value in changes.items()
            },
        }
        path = tmp_path / folder / "release.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(settings))
        return load_config(path)

    return make


def contents(store: Place) -> dict[str, bytes]:
    """Every chunk of a release's store."""
    if isinstance(store, ObjectPath):
        return {name: (store / name).read_bytes() for name in store.files() if "/c/" in name}
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in store.rglob("*")
        if file.is_file() and "/c/" in str(file)
    }


def failed(folder: Place) -> list[str]:
    """Names of the checks of ``verify`` that do not hold."""
    return [check.name for check in verify_release(folder).checks if not check.ok]


@pytest.mark.filterwarnings("ignore:.*is NOT PRIVATE:")
def test_the_same_bits_as_on_disk_for_every_reader(
    source: Path, bucket: ObjectPath, configure: Configure
) -> None:
    local = release(configure("local"), Silent(), unsafe_seed=7)
    ingest(source, bucket / "vault" / "gallery.zarr")
    config = configure(
        "remote", gallery=bucket / "vault" / "gallery.zarr", output=bucket / "public"
    )
    remote = release(config, Silent(), unsafe_seed=7)
    assert remote.path == bucket / "public" / "gram-not-private"
    assert contents(remote.path / publish.STORE) == contents(local.path / publish.STORE)
    assert remote.manifest.noisy == local.manifest.noisy
    assert failed(remote.path) == []
    assert set((bucket / "public").names()) == {"gram-not-private"} | (
        {".publishing"} & (bucket / "public").names()
    )
    assert (bucket / "public" / ".publishing").files() == {}

    here, there = open_release(local.path), open_release(str(remote.path))
    assert np.array_equal(there.rows(0, N), here.rows(0, N))
    assert np.array_equal(there.topk(3)[0], here.topk(3)[0])
    whole = there.to_dask().compute(scheduler="threads")
    assert np.array_equal(whole, here.rows(0, N))

    for words in (["show"], ["verify"]):
        shown = CliRunner().invoke(cli, [*words, str(remote.path)])
        assert shown.exit_code == 0, shown.output
        assert "NOT PRIVATE" in shown.output
    for secret in ("writersecret", "writerkey"):
        for folder in (config.private, config.private.parent):
            assert not any(
                secret.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file()
            )


def test_a_crash_while_publishing_is_resumed_and_the_release_is_immutable(
    bucket: ObjectPath, configure: Configure
) -> None:
    config = configure(output=bucket)
    with pytest.raises(Interrupted):
        release(config, InterruptAt("publish", 2), None)
    assert release_status(config).stage == "publish"
    with pytest.raises(IntegrityFailure, match="no release"):
        open_release(bucket / "gram")
    # Another machine, with a private folder of its own, keeps away and spends nothing.
    other = configure("other", output=bucket)
    with pytest.raises(ConfigurationError, match=r"another run.*publishes"):
        release(other, Silent())
    with pytest.raises(BudgetRefused):
        account_of(other)

    made = release(config, Silent())
    assert made.newly
    assert failed(made.path) == []
    assert (bucket / ".publishing").files() == {}
    before = {name: (bucket / name).read_bytes() for name in bucket.files()}
    assert not release(config, Silent()).newly
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.start_release(str(made.path))
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.finish(made.path, made.manifest)
    with pytest.raises(IntegrityFailure, match="sign"):
        release(other, Silent())
    assert {name: (bucket / name).read_bytes() for name in bucket.files()} == before

    damage(made.path)


def damage(folder: Place) -> None:
    """Every kind of damage to the objects of a release is found, and named."""
    assert isinstance(folder, ObjectPath)
    store = folder / publish.STORE
    chunk, other = store / "gram" / "c" / "0" / "1", store / "gram" / "c" / "1" / "0"
    content = chunk.read_bytes()
    chunk.write(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert failed(folder) == ["checksums"]
    chunk.write(content[:-1])
    assert failed(folder) == ["files"]
    chunk.delete()
    assert failed(folder) == ["files"]
    chunk.write(other.read_bytes())
    assert "digest of gram" in failed(folder)
    chunk.write(content)
    extra = store / "gram" / "c" / "9" / "9"
    extra.write(content)
    assert failed(folder) == ["files"]
    extra.delete()
    beside = folder / "notes.txt"
    beside.write(b"")
    assert failed(folder) == ["folder"]
    beside.delete()
    manifest = folder / publish.MANIFEST
    text = manifest.read_bytes()
    manifest.write(text.replace(b'"epsilon": 50.0', b'"epsilon": 40.0', 1))
    assert "signature" in failed(folder)
    manifest.write(text)
    assert failed(folder) == []


def test_of_two_publishers_one_wins(bucket: ObjectPath) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def write(content: bytes) -> None:
        start.wait()
        try:
            publish._write_manifest(bucket / "gram", content)
        except ConfigurationError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("won")

    threads = [threading.Thread(target=write, args=(name,)) for name in (b"first", b"second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome == "won" for outcome in outcomes) == [False, True]
    assert any("never overwritten" in outcome for outcome in outcomes)


def test_what_cannot_be_written_is_found_before_anything_is_spent(
    bucket: ObjectPath, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = configure(output="s3://no-such-bucket/releases")
    with pytest.raises(ConfigurationError, match="no such bucket"):
        release(missing, Silent())
    config = configure(output=bucket)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "readerkey")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "readersecret")
        with pytest.raises(ConfigurationError, match=r"refuses access, AccessDenied"):
            release(config, Silent())
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(ConfigurationError, match="refuses access"):
            release(config, Silent())
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv(DEADLINE, "0.3")
        with pytest.raises(RunFailed, match="object store failed"):
            release(config, Silent())
    (bucket / "gram" / "letter.txt").write(b"dear reader")
    with pytest.raises(ConfigurationError, match=r"letter\.txt"):
        release(config, Silent())
    (bucket / "gram").delete()
    beyond = {"epsilon": 500.0, "delta": 1e-6, "adjacency": "record"}
    with pytest.raises(BudgetRefused, match="requested"):
        release(configure(output=bucket, privacy=beyond), Silent())
    # Nothing was spent, and no claim or probe is left behind.
    assert account_of(config).entries == ()
    assert bucket.files() == {}


def test_a_release_that_is_given_up_leaves_no_object(
    bucket: ObjectPath, configure: Configure
) -> None:
    config = configure(output=bucket)
    with pytest.raises(Interrupted):
        release(config, InterruptAt("publish", 1))
    assert bucket.files()
    abandon(config)
    assert bucket.files() == {}


def test_a_gallery_does_not_lie_in_the_published_prefix(configure: Configure) -> None:
    with pytest.raises(ConfigurationError, match="outside the published folder"):
        configure(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/a")
    configure(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/ab")
