"""Releases in an object store: the bits of one on disk, one publisher, whole or not there."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.errors import BudgetRefused, ConfigurationError, IntegrityFailure, RunFailed
from pipeline.ingest import ingest
from pipeline.publish import gram as publish
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.abandon import abandon
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.outcome import Outcome
from pipeline.run.status import account_of, release_status
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE
from pipeline.storage.place import Place


def failed(folder: Place) -> list[str]:
    """Names of the checks of ``verify`` that do not hold."""
    return [check.name for check in verify_release(folder).checks if not check.ok]


@pytest.mark.filterwarnings("ignore:.*is NOT PRIVATE:")
def test_the_same_bits_as_on_disk_for_every_reader(
    curator: Any, reference: Outcome, bucket: ObjectPath
) -> None:
    local, public = reference, bucket / "public"
    ingest(curator.source, bucket / "vault" / "gallery.zarr")
    config = curator.load(
        gallery=bucket / "vault" / "gallery.zarr", blocks=bucket / "vault", output=public
    )
    remote = curator.repeatable(config)
    assert remote.path == public / "gram-not-private"
    assert curator.contents(remote.path) == curator.contents(local.path)
    assert remote.manifest.noisy == local.manifest.noisy
    assert failed(remote.path) == []
    assert (public / ".publishing").files() == {}
    assert not list(config.private.rglob("noisy.zarr"))

    here, there = open_release(local.path), open_release(str(remote.path))
    assert np.array_equal(there.rows(0, here.n), here.rows(0, here.n))
    assert np.array_equal(there.topk(3)[0], here.topk(3)[0])
    whole = there.to_dask().compute(scheduler="threads")
    assert np.array_equal(whole, here.rows(0, here.n))

    for words in (["show"], ["verify"]):
        shown = CliRunner().invoke(cli, [*words, str(remote.path)])
        assert shown.exit_code == 0, shown.output
        assert "NOT PRIVATE" in shown.output
    for secret in ("writersecret", "writerkey"):
        for folder in (config.private, config.private.parent):
            assert not any(
                secret.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file()
            )


def test_crashes_are_resumed_by_their_run_alone_and_the_release_is_immutable(
    curator: Any, bucket: ObjectPath
) -> None:
    public, kept = bucket / "public", bucket / "vault" / "gram" / "noisy.zarr" / "blocks" / "c"
    config = curator.load(output=public, blocks=bucket / "vault")
    curator.interrupt(config, "perturb", 3)
    status = release_status(config)
    assert (status.stage, status.blocks) == ("perturb", 6)
    assert status.blocks_done >= 3
    receipts = bucket / "vault" / "gram" / "receipts"
    done = [int(name.partition(".")[0]) for name in receipts.files()]
    assert len(done) == status.blocks_done
    stamps = {index: (kept / str(index) / "0" / "0").stamp() for index in done}
    damaged = kept / str(done[0]) / "0" / "0"
    content = damaged.read_bytes()
    damaged.write(bytes([content[0] ^ 1]) + content[1:])

    # Another machine, with a private folder of its own, keeps away and spends nothing.
    for places in ({"output": public}, {"blocks": bucket / "vault"}):
        other = curator.load("other", **places)
        with pytest.raises(ConfigurationError, match="another run"):
            curator.release(other)
        with pytest.raises(BudgetRefused):
            account_of(other)
    other = curator.load("other", output=public)

    curator.interrupt(config, "publish", 2)
    assert damaged.read_bytes() == content
    assert all((kept / str(index) / "0" / "0").stamp() == stamps[index] for index in done[1:])
    assert release_status(config).stage == "publish"
    with pytest.raises(IntegrityFailure, match="no release"):
        open_release(public / "gram")

    made = curator.release(config)
    assert made.newly
    assert failed(made.path) == []
    assert (public / ".publishing").files() == {}
    before = {name: (public / name).read_bytes() for name in public.files()}
    assert not curator.release(config).newly
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.start_release(made.path)
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.finish(made.path, made.manifest)
    with pytest.raises(IntegrityFailure, match="sign"):
        curator.release(other)
    assert {name: (public / name).read_bytes() for name in public.files()} == before

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
    bucket: ObjectPath, curator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = curator.load(output="s3://no-such-bucket/releases")
    with pytest.raises(ConfigurationError, match="no such bucket"):
        curator.release(missing)
    config = curator.load(output=bucket)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "readerkey")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "readersecret")
        with pytest.raises(ConfigurationError, match=r"refuses access, AccessDenied"):
            curator.release(config)
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(ConfigurationError, match="refuses access"):
            curator.release(config)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv(DEADLINE, "0.3")
        with pytest.raises(RunFailed, match="object store failed"):
            curator.release(config)
    (bucket / "gram" / "letter.txt").write(b"dear reader")
    with pytest.raises(ConfigurationError, match=r"letter\.txt"):
        curator.release(config)
    (bucket / "gram").delete()
    beyond = {"epsilon": 500.0, "delta": 1e-6, "adjacency": "record"}
    with pytest.raises(BudgetRefused, match="requested"):
        curator.release(curator.load(output=bucket, privacy=beyond))
    # No ledger was made, so nothing was spent; and no claim or probe is left behind.
    assert not ConfiguredLedger(config).exists
    assert bucket.files() == {}


def test_a_release_that_is_given_up_leaves_no_object(bucket: ObjectPath, curator: Any) -> None:
    config = curator.load(output=bucket / "public", blocks=bucket / "vault")
    curator.interrupt(config, "publish", 1)
    assert (bucket / "vault").files()
    assert (bucket / "public").files()
    abandon(config)
    assert bucket.files() == {}


def test_a_gallery_does_not_lie_in_the_published_prefix(curator: Any) -> None:
    with pytest.raises(ConfigurationError, match="outside the published folder"):
        curator.load(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/a")
    with pytest.raises(ConfigurationError, match="outside the published folder"):
        curator.load(blocks="s3://bucket/a/b", output="s3://bucket/a")
    curator.load(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/ab")
