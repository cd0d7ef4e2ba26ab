"""Releases in an object store: the bits of one on disk, one publisher, whole or not there."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.errors import (
    BudgetRefused,
    ConfigurationError,
    IntegrityFailure,
    RunFailed,
    exit_code,
)
from pipeline.forecast.preview import preview
from pipeline.ingest import ingest
from pipeline.publish import gram as publish
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.abandon import abandon
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.outcome import Outcome
from pipeline.run.status import account_of, release_status
from pipeline.storage.layout import MANIFEST, RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE
from pipeline.storage.place import Place
from tests.harness.curator import Curator
from tests.harness.object_store import HANG_UP, READER, Proxy, contents

pytestmark = pytest.mark.filterwarnings("ignore:.*is NOT PRIVATE:")
SEED = 7


def prepared(root: Path) -> Curator:
    """A curator of six blocks, the last ones with an edge."""
    made = Curator(root)
    made.settings["release"] = "gram"
    made.write_source(n=150)
    return made


@pytest.fixture
def curator(tmp_path: Path) -> Curator:
    return prepared(tmp_path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What every release with the seed should come out as: one on a file system."""
    return prepared(tmp_path_factory.mktemp("reference")).release(unsafe_seed=SEED)


@pytest.fixture
def places(bucket: ObjectPath) -> dict[str, str]:
    """Release and noisy blocks in the object store."""
    return {"output": str(bucket / "public"), "blocks": str(bucket / "vault")}


def failed(folder: Place) -> list[str]:
    """Names of the checks of ``verify`` that do not hold."""
    return [check.name for check in verify_release(folder).checks if not check.ok]


def test_the_same_bits_as_on_disk_for_every_reader(
    curator: Curator, reference: Outcome, bucket: ObjectPath, places: dict[str, str]
) -> None:
    ingest(curator.root / "source.npy", bucket / "vault" / "gallery.zarr")
    changes = {**places, "gallery": str(bucket / "vault" / "gallery.zarr")}
    # Workers find the object store in the environment of their own processes.
    curator.processes = True
    remote, config = curator.release(unsafe_seed=SEED, **changes), curator.load(**changes)
    assert remote.path == bucket / "public" / "gram-not-private"
    assert contents(remote.path) == contents(reference.path)
    assert remote.manifest.noisy == reference.manifest.noisy
    assert failed(remote.path) == []
    assert (bucket / "public" / ".publishing").files() == {}
    assert not list(config.private.rglob("noisy.zarr"))

    here, there = open_release(reference.path), open_release(str(remote.path))
    assert np.array_equal(there.rows(0, here.n), here.rows(0, here.n))
    assert np.array_equal(there.topk(3)[0], here.topk(3)[0])
    whole = there.to_dask().compute(scheduler="threads")
    assert np.array_equal(whole, here.rows(0, here.n))

    for words in (["show"], ["verify"]):
        shown = CliRunner().invoke(cli, [*words, str(remote.path)])
        assert shown.exit_code == 0, shown.output
        assert "NOT PRIVATE" in shown.output
    for secret in ("writersecret", "writerkey"):
        assert not any(
            secret.encode() in file.read_bytes()
            for file in curator.root.rglob("*")
            if file.is_file()
        )


def test_crashes_are_resumed_by_their_run_alone_and_the_release_is_immutable(
    curator: Curator, bucket: ObjectPath, places: dict[str, str]
) -> None:
    public, kept = bucket / "public", bucket / "vault" / "gram" / "noisy.zarr" / "blocks" / "c"
    config = curator.load(**places)
    # One worker process does one block at a time: some are left to do.
    curator.processes = True
    curator.interrupt("perturb", 3, **places)
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
    (curator.root / "other").mkdir()
    other = prepared(curator.root / "other")
    for taken in ("output", "blocks"):
        with pytest.raises(ConfigurationError, match="another run"):
            other.release(**{taken: places[taken]})
        with pytest.raises(BudgetRefused):
            account_of(other.load(**{taken: places[taken]}))

    curator.interrupt("publish", 2, **places)
    assert damaged.read_bytes() == content
    assert all((kept / str(index) / "0" / "0").stamp() == stamps[index] for index in done[1:])
    assert release_status(config).stage == "publish"
    with pytest.raises(IntegrityFailure, match="no release"):
        open_release(public / "gram")

    made = curator.release(**places)
    assert made.newly
    assert failed(made.path) == []
    assert (public / ".publishing").files() == {}
    before = {name: (public / name).read_bytes() for name in public.files()}
    assert not curator.release(**places).newly
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.start_release(made.path)
    with pytest.raises(ConfigurationError, match="never overwritten"):
        publish.finish(made.path, made.manifest)
    with pytest.raises(IntegrityFailure, match="sign"):
        other.release(output=str(public))
    assert {name: (public / name).read_bytes() for name in public.files()} == before

    damage(made.path)


def damage(folder: Place) -> None:
    """Every kind of damage to the objects of a release is found, and named."""
    assert isinstance(folder, ObjectPath)
    store = folder / RELEASE_STORE
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
    manifest = folder / MANIFEST
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
    bucket: ObjectPath, curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="no such bucket"):
        curator.release(output="s3://no-such-bucket/releases")
    for environment, refusal, message in (
        (READER, ConfigurationError, r"refuses access, AccessDenied"),
        ((READER[0], "another"), ConfigurationError, "refuses access"),
        (None, RunFailed, "object store failed"),
    ):
        with monkeypatch.context() as patch:
            if environment is None:
                patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
                patch.setenv(DEADLINE, "0.3")
            else:
                patch.setenv("AWS_ACCESS_KEY_ID", environment[0])
                patch.setenv("AWS_SECRET_ACCESS_KEY", environment[1])
            with pytest.raises(refusal, match=message):
                curator.release(output=str(bucket))
    (bucket / "gram" / "letter.txt").write(b"dear reader")
    with pytest.raises(ConfigurationError, match=r"letter\.txt"):
        curator.release(output=str(bucket))
    (bucket / "gram").delete()
    beyond = {"epsilon": 500.0, "delta": 1e-6, "adjacency": "record"}
    with pytest.raises(BudgetRefused, match="requested"):
        curator.release(output=str(bucket), privacy=beyond)
    # No ledger was made, so nothing was spent; and no claim or probe is left behind.
    assert not ConfiguredLedger(curator.load()).exists
    assert bucket.files() == {}


def test_a_release_that_is_given_up_leaves_no_object(
    bucket: ObjectPath, curator: Curator, places: dict[str, str]
) -> None:
    curator.interrupt("publish", 1, **places)
    assert (bucket / "vault").files()
    assert (bucket / "public").files()
    abandon(curator.load(**places))
    assert bucket.files() == {}


def now_and_then(*answers: int | float) -> Callable[[str, str], int | float | None]:
    """Every fourth request meets one of the answers, in turn."""
    requests = count(1)

    def fault(method: str, path: str) -> int | float | None:
        seen = next(requests)
        return answers[seen // 4 % len(answers)] if seen % 4 == 0 else None

    return fault


def test_errors_and_silence_now_and_then_change_nothing(
    curator: Curator, reference: Outcome, places: dict[str, str], proxy: Proxy
) -> None:
    proxy.fault = now_and_then(500, 503, 0.3)
    made = curator.release(unsafe_seed=SEED, **places)
    assert proxy.faults > 20
    proxy.fault = None
    assert made.newly
    assert contents(made.path) == contents(reference.path)


@pytest.mark.parametrize(
    "answer",
    [pytest.param(HANG_UP, id="gone"), pytest.param(503, id="slow down", marks=pytest.mark.slow)],
)
def test_an_object_store_that_fails_for_good_leaves_a_run_to_resume(
    curator: Curator,
    reference: Outcome,
    bucket: ObjectPath,
    places: dict[str, str],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    answer: int,
) -> None:
    monkeypatch.setenv(DEADLINE, "1.5")
    failing = False

    def from_the_third_receipt_on(method: str, path: str) -> int | None:
        nonlocal failing
        failing = failing or (method == "PUT" and path.endswith("/receipts/2.json"))
        return answer if failing else None

    proxy.fault = from_the_third_receipt_on
    with pytest.raises(RunFailed, match="the object store failed") as caught:
        curator.release(unsafe_seed=SEED, **places)
    assert exit_code(caught.value) == 6
    assert "\n" not in str(caught.value)
    proxy.fault = None
    assert (bucket / "public" / "gram-not-private").files() == {}
    made = curator.release(unsafe_seed=SEED, **places)
    assert contents(made.path) == contents(reference.path)


def test_blocks_in_a_folder_of_their_own(
    curator: Curator, reference: Outcome, tmp_path: Path
) -> None:
    """The same bits, one run, and closed to others."""
    elsewhere = {"blocks": str(tmp_path / "scratch-disk")}
    made = curator.release(unsafe_seed=SEED, **elsewhere)
    assert contents(made.path) == contents(reference.path)
    kept = tmp_path / "scratch-disk" / "gram-not-private"
    assert {path.name for path in kept.iterdir()} == {"claim", "noisy.zarr", "receipts"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert not list(curator.load().private.rglob("noisy.zarr"))
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigurationError, match="noisy blocks of another run"):
        prepared(tmp_path / "other").release(unsafe_seed=SEED, **elsewhere)


def test_the_plan_says_where_free_space_is_not_checked(curator: Curator) -> None:
    shown = preview(curator.load(blocks="s3://vault/runs"))
    assert shown.unmeasured == ("s3://vault/runs",)
    assert "s3://vault/runs: an object store, whose free space isn't checked" in shown.to_text()


def test_a_gallery_does_not_lie_in_the_published_prefix(curator: Curator) -> None:
    with pytest.raises(ConfigurationError, match="outside the published folder"):
        curator.load(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/a")
    with pytest.raises(ConfigurationError, match="outside the published folder"):
        curator.load(blocks="s3://bucket/a/b", output="s3://bucket/a")
    curator.load(gallery="s3://bucket/a/gallery.zarr", output="s3://bucket/ab")
