"""Every stage of a release meets every fault, and ends as ``OUTCOMES`` says.

Whatever happens, the same command makes the same release in the end, bit for bit that of a run
which nothing disturbed; its budget is spent once; and what is not finished can't be opened. Worker
processes, disks and schedulers are real; :mod:`tests.harness.accidents` lets the accidents happen.
What meets the driver or its disk alone is tried on worker threads first, in the short set.
``docs/faults.md`` shows the same table to operators.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cluster.certificates import make_certificates
from pipeline.errors import IntegrityFailure
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from tests.harness.accidents import run_with_accidents
from tests.harness.command import COMMAND, Ended
from tests.harness.curator import Curator
from tests.harness.interruptions import KeyWatch

ROOT = Path(__file__).resolve().parents[3]

STAGES = ("ingest", "reserve", "perturb", "project", "project blockwise", "publish", "commit")
NO_WORKERS = dict.fromkeys(("ingest", "commit"), "no workers")
OUTCOMES: dict[str, dict[str, str]] = {
    "worker killed": {**dict.fromkeys(STAGES, "finishes"), **NO_WORKERS},
    "worker hung": {**dict.fromkeys(STAGES, "finishes"), **NO_WORKERS},
    "scheduler lost": {**dict.fromkeys(STAGES, "exit 6"), **NO_WORKERS},
    "driver killed": dict.fromkeys(STAGES, "killed"),
    "disk full": dict.fromkeys(STAGES, "exit 6"),
    "output read-only": {
        **dict.fromkeys(STAGES, "exit 6"),
        "ingest": "exit 2",
        "reserve": "exit 2",
        "commit": "finishes",
    },
}
"""``finishes``: as if nothing had happened. ``exit 6``: one line, and the same command resumes.

``exit 2``: one line, nothing was spent. ``killed``: the same command resumes.
"""

MOMENTS = {
    "ingest": "ingest:300",
    "reserve": "reserve",
    "perturb": "perturb:5",
    "project": "project+",
    "project blockwise": "project:1",
    "publish": "publish:3",
    "commit": "commit",
}
FORMS = {"dense": "project", "blockwise": "project blockwise"}
LINEAGE = "5" * 32


def stages_of(form: str) -> list[str]:
    """The stages of a run whose projection takes that form."""
    return [stage for stage in STAGES if stage not in FORMS.values() or stage == FORMS[form]]


def prepare(curator: Curator, form: str, processes: bool = True, **cluster: Any) -> Curator:
    """Configure a run whose projection takes long enough for accidents."""
    curator.processes = processes
    dense = {"method": "aap", "form": "dense", "tolerance": 1e-7}
    blockwise = {"method": "shrink", "form": "blockwise", "tolerance": 1e-3}
    curator.settings |= {
        # Lineage and secret make the key the same in every run of this module.
        "lineage": LINEAGE,
        "secret": curator.write_secret(bytes(range(32))),
        "projection": dense if form == "dense" else blockwise,
        "cluster": {"workers": 1, "memory_limit": "1GiB", **cluster},
    }
    curator.configure()
    return curator


def command(curator: Curator, accidents: dict[str, str], **environment: str) -> Ended:
    """Release with accidents."""
    threads = not curator.processes
    ended = run_with_accidents(
        curator.root, accidents, "release", "release.yaml", threads=threads, **environment
    )
    happened = {line for line in ended.stderr.splitlines() if line.startswith('{"accident"')}
    assert len(happened) == len(accidents), (accidents, ended)
    return ended


def assert_outcome(curator: Curator, fault: str, stage: str, ended: Ended) -> None:
    """As the table says, and nothing can be read that is not finished."""
    outcome = OUTCOMES[fault][stage]
    codes = {"finishes": 0, "exit 2": 2, "exit 6": 6, "killed": -9}
    assert ended.returncode == codes[outcome], (fault, stage, ended)
    if outcome.startswith("exit"):
        assert len(ended.messages) == 1, (fault, stage, ended)
        remedy = "Nothing was spent" if outcome == "exit 2" else r"\bagain\b"
        assert re.search(remedy, ended.messages[0])
    for folder in curator.root.glob("**/releases/*"):
        if not (folder / "manifest.json").exists():
            with pytest.raises(IntegrityFailure):
                open_release(folder)


def digests(path: Path) -> dict[str, str]:
    """What a release holds: its arrays, and the noisy blocks it was made from."""
    manifest = open_release(path).manifest
    arrays = {name: record.sha256 for name, record in manifest.arrays.items()}
    return {**arrays, "noisy": manifest.noisy.sha256}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The digests of the release, by form of its projection; made once each."""
    made: dict[str, dict[str, str]] = {}

    def of(form: str) -> dict[str, str]:
        if form not in made:
            curator = Curator(tmp_path_factory.mktemp(form))
            curator.write_source()
            made[form] = digests(prepare(curator, form, processes=False).release().path)
        return made[form]

    return of


def assert_finished(curator: Curator, expected: dict[str, str]) -> None:
    curator.processes = False
    outcome = curator.release()
    assert digests(outcome.path) == expected
    assert verify_release(outcome.path).ok
    curator.assert_spent_once()


@pytest.fixture
def small_disk(curator: Curator) -> Iterator[Path]:
    """A disk of 128 MiB of its own, ``disk`` in the curator's folder."""
    mounted = curator.root / "disk"
    mounted.mkdir()
    mount = shutil.which("mount")
    made = [str(mount), "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(mounted)]
    if mount is None or subprocess.run(made, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def on_threads_first(short: str) -> Any:
    """One form of the projection on worker threads in the short set; all else is for the slow."""
    return pytest.mark.parametrize(
        ("form", "processes"),
        [
            (short, False),
            *(pytest.param(form, True, marks=pytest.mark.slow) for form in FORMS),
        ],
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "stages"),
    [
        ("dense", ["perturb"]),
        pytest.param("dense", ["project", "publish"], marks=pytest.mark.slow),
        pytest.param("blockwise", ["reserve", "project blockwise"], marks=pytest.mark.slow),
    ],
)
def test_worker_killed(form: str, stages: list[str], curator: Curator, undisturbed: Any) -> None:
    """The busy worker is killed in each stage of one run.

    What it held is asked for at its dead address for a while: this takes its time.
    """
    prepare(curator, form)
    ended = command(curator, {MOMENTS[stage]: "kill_worker" for stage in stages})
    for stage in stages:
        assert_outcome(curator, "worker killed", stage, ended)
    assert_finished(curator, undisturbed(form))


@pytest.mark.parametrize(
    ("form", "stages"),
    [
        ("dense", ["perturb"]),
        pytest.param("dense", ["project"], marks=pytest.mark.slow),
        pytest.param("dense", ["reserve", "publish"], marks=pytest.mark.slow),
        pytest.param("blockwise", ["project blockwise", "publish"], marks=pytest.mark.slow),
    ],
)
def test_worker_hung(form: str, stages: list[str], curator: Curator, undisturbed: Any) -> None:
    """The busy worker stops in each stage of one run; it is restarted when patience ends."""
    # Longer than a new worker takes to be there on a busy machine.
    prepare(curator, form, task_timeout=15)
    ended = command(curator, {MOMENTS[stage]: "stop_worker" for stage in stages})
    for stage in stages:
        assert_outcome(curator, "worker hung", stage, ended)
    assert_finished(curator, undisturbed(form))


STEPS_TO_DIE_AT = {
    "ingest": ["ingest:300"],
    "reserve": ["reserve", "after reserve", "after key", "after commit_key"],
    "perturb": ["after record_start", "half a store", "perturb:5", "perturb:11"],
    "project": ["project:1", "after project"],
    "publish": ["publish:3", "manifest"],
    "commit": ["after manifest", "commit", "destroy_key", "after destroy_key"],
}


@on_threads_first("dense")
def test_driver_killed(form: str, processes: bool, curator: Curator, undisturbed: Any) -> None:
    """The driver dies after each step; each attempt starts from what the one before has left."""
    prepare(curator, form, processes)
    random_key = form == "dense"
    if random_key:
        del curator.settings["secret"]
        curator.configure()
    with KeyWatch(curator.root) as watch:
        die_at_each_step(curator)
    if random_key:
        assert verify_release(curator.release().path).ok
        curator.assert_spent_once()
        np.testing.assert_array_equal(curator.noisy(), curator.expected_noisy(watch.key))
    else:
        assert_finished(curator, undisturbed(form))


def die_at_each_step(curator: Curator) -> None:
    kept: dict[Path, int] = {}
    for stage, moments in STEPS_TO_DIE_AT.items():
        for moment in moments:
            accident = "half_destroy_the_key" if moment == "destroy_key" else "kill_driver"
            assert_outcome(curator, "driver killed", stage, command(curator, {moment: accident}))
            receipts = {
                file: file.stat().st_mtime_ns
                for file in curator.root.glob("private/runs/*/receipts/*.json")
            }
            # A finished block is never made again.
            assert kept.items() <= receipts.items(), moment
            kept = receipts


@on_threads_first("blockwise")
def test_disk_full(
    form: str, processes: bool, curator: Curator, undisturbed: Any, small_disk: Path
) -> None:
    """Ledger, private folder and output share a disk; it fills up in each stage in turn."""
    prepare(curator, form, processes)
    curator.settings["ledger"]["url"] = "sqlite:///disk/ledger.db"
    curator.settings |= {"private": "disk/private", "output": "disk/releases"}
    curator.configure()
    for stage in stages_of(form):
        moments = [MOMENTS[stage], *(["manifest"] if stage == "publish" else [])]
        for moment in moments:
            ended = command(curator, {moment: "fill_disk"})
            assert_outcome(curator, "disk full", stage, ended)
            (small_disk / "filler").unlink()
    assert_finished(curator, undisturbed(form))


@on_threads_first("dense")
def test_output_read_only(
    form: str, processes: bool, curator: Curator, undisturbed: Any, small_disk: Path
) -> None:
    prepare(curator, form, processes)
    curator.settings["output"] = "disk/releases"
    curator.configure()
    for stage in stages_of(form):
        if stage == "reserve":
            # Found with the check that precedes it, after the source was ingested.
            continue
        # The attempt before has finished the projection: what is left is the step as such.
        moment = "project" if stage in FORMS.values() else MOMENTS[stage]
        ended = command(curator, {moment: "make_output_read_only"})
        assert_outcome(curator, "output read-only", stage, ended)
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        if stage == "ingest":
            assert not (curator.root / "ledger.db").exists()
    assert_finished(curator, undisturbed(form))


@pytest.fixture
def apart(curator: Curator) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler in a process of its own, with a worker; the curator's configuration names it."""
    prepare(curator, "dense")
    make_certificates(curator.root / "tls", 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = {"ca": "tls/ca.pem", "certificate": "tls/cluster.pem", "key": "tls/cluster.key"}
    curator.settings["cluster"] |= {
        "kind": "address",
        "address": f"tls://127.0.0.1:{port}",
        "tls": files,
    }
    curator.configure()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    services = [
        subprocess.Popen(
            [COMMAND, "cluster", role, "release.yaml"],
            cwd=curator.root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for role in ("scheduler", "worker")
    ]
    yield services[0]
    for service in services:
        service.terminate()
        service.wait()


@pytest.mark.parametrize(
    ("form", "stage"),
    [
        ("dense", "perturb"),
        pytest.param("dense", "reserve", marks=pytest.mark.slow),
        pytest.param("dense", "project", marks=pytest.mark.slow),
        pytest.param("blockwise", "project blockwise", marks=pytest.mark.slow),
        pytest.param("dense", "publish", marks=pytest.mark.slow),
    ],
)
def test_scheduler_lost(
    form: str, stage: str, curator: Curator, undisturbed: Any, apart: subprocess.Popen[bytes]
) -> None:
    """Where it runs apart from the driver; on one machine it is the driver."""
    cluster = curator.settings["cluster"]
    prepare(curator, form, **cluster)
    ended = command(curator, {MOMENTS[stage]: "kill_scheduler"}, SCHEDULER=str(apart.pid))
    assert_outcome(curator, "scheduler lost", stage, ended)
    prepare(curator, form)
    assert_finished(curator, undisturbed(form))


def test_the_table_of_the_documents_is_this_one() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    header = next(row for row in rows if row[1:] == list(STAGES))
    shown = {
        row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows if row[0] in OUTCOMES
    }
    assert shown == OUTCOMES
    assert re.search("object store", text, flags=re.IGNORECASE)
