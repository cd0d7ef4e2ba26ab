"""Runs that are killed, raced and robbed: each ends resumable, or refused in words.

Every stage meets every fault in ``test_fault_matrix.py``; here are random moments, and what is no
fault of a stage.

The invariants of every test: budget is spent exactly once, the noisy values are those of a run that
nothing disturbed, a release that is not finished can't be opened, and the key is gone at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import IntegrityFailure
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from tests.harness.interruptions import KeyWatch, wait_until


@pytest.fixture
def longer(curator: Any) -> Any:
    """A run of 55 blocks on two workers."""
    curator.write_source(n=640)
    curator.settings["cluster"] = {"workers": 2, "memory_limit": "1GiB"}
    curator.configure()
    return curator


def receipts(curator: Any) -> int:
    return len(list(curator.root.glob("private/runs/*/receipts/*.json")))


def reserved(curator: Any) -> bool:
    logs = curator.root.glob("private/runs/*/log.jsonl")
    return any('"reserved"' in log.read_text() for log in logs)


def assert_not_readable(curator: Any) -> None:
    """A release without its manifest is no release."""
    for folder in curator.root.glob("releases/*"):
        if not (folder / "manifest.json").exists():
            with pytest.raises(IntegrityFailure):
                open_release(folder)


def finish(curator: Any, watch: Any) -> None:
    """Run the same command again; everything must be as if nothing had happened."""
    done = curator.command("release", "release.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert verify_release(json.loads(done.stdout)["path"]).ok
    curator.assert_spent_once()
    # A key that was destroyed before anybody looked leaves nothing to compare with.
    assert len(watch.keys) == 1
    np.testing.assert_array_equal(curator.noisy(), curator.expected_noisy(watch.key))


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def kill_driver_alone(process: subprocess.Popen[str]) -> None:
    process.kill()


def moments(seed: int, count: int) -> list[Any]:
    """(kind of kill, seconds after the reservation) at seeded random moments of a run."""
    draw = random.Random(seed)
    kinds = (kill_group, kill_driver_alone)
    return [
        pytest.param(kinds[k % 2], draw.uniform(0.0, 2.5), id=f"{kinds[k % 2].__name__}-{k}")
        for k in range(count)
    ]


def kill_and_resume(curator: Any, kill: Callable[[Any], None], delay: float) -> None:
    with KeyWatch(curator.root) as watch:
        process = curator.start("release", "release.yaml")
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait_until(lambda: reserved(curator) or process.poll() is not None)
            process.wait(timeout=delay)
        if process.poll() is None:
            kill(process)
        process.communicate()
        assert_not_readable(curator)
        account = curator.account()
        assert account is not None
        assert len(account.entries) == 1
        finish(curator, watch)


@pytest.mark.parametrize(("kill", "delay"), moments(2026, 2))
def test_killed_at_a_random_moment(kill: Callable[[Any], None], delay: float, longer: Any) -> None:
    kill_and_resume(longer, kill, delay)


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "delay"), moments(1066, 25))
def test_killed_at_more_random_moments(
    kill: Callable[[Any], None], delay: float, longer: Any
) -> None:
    kill_and_resume(longer, kill, delay)


def test_a_key_that_vanishes_is_named_with_its_remedy(longer: Any) -> None:
    process = longer.start("release", "release.yaml")
    wait_until(lambda: receipts(longer) >= 3)
    longer.prepared().folder.key_file.unlink()
    _, errors = process.communicate(timeout=120)
    again = longer.command("release", "release.yaml")
    for code, message in ((process.returncode, errors), (again.returncode, again.stderr)):
        assert code == 5, message
        assert "scoreshield ledger abandon" in message
    spent = longer.account().spent
    assert longer.command("ledger", "abandon", "release.yaml").returncode == 0
    assert longer.account().spent == spent
    refused = longer.command("release", "release.yaml")
    assert refused.returncode == 4
    assert "abandoned" in refused.stderr
    small = {**longer.settings["privacy"], "epsilon": 30.0}
    assert longer.release(release="again", privacy=small).newly
    assert [entry.state for entry in longer.account().entries] == ["abandoned", "committed"]


def test_two_processes_and_one_release(longer: Any) -> None:
    first = longer.start("release", "release.yaml")
    wait_until(lambda: reserved(longer))
    second = longer.command("release", "release.yaml")
    assert second.returncode == 6
    assert "another process is running this release" in second.stderr
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
    longer.assert_spent_once()


def test_two_releases_and_one_budget(curator: Any) -> None:
    """Neither ledger nor gallery is there yet; both processes try to make both of them."""
    names = ("one", "two")
    for name in names:
        curator.configure(f"{name}.yaml", release=name)
    started = [curator.start("release", f"{name}.yaml") for name in names]
    results = [process.communicate(timeout=120) for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == [0, 4], results
    entries = curator.account().entries
    assert [entry.state for entry in entries] == ["committed"]
    loser = next(name for name in names if name != entries[0].release_id)
    assert not (curator.root / "private" / "runs" / loser / "release.key").exists()


def test_files_that_cannot_grow(curator: Any) -> None:
    """A limit on the size of files stands for a full disk: no block of 1 MiB can be written."""
    curator.settings |= {"block_side": 512, "precision": "float32"}
    curator.configure()
    limit = 512 * 1024

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    failed = curator.process("release", "release.yaml", preexec_fn=limited)
    assert failed.returncode == 6, failed.stderr
    assert len(messages(failed.stderr)) == 1
    assert "run the same command again" in failed.stderr
    assert curator.release().newly
    curator.assert_spent_once()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mounted)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_disk_too_small_is_found_before_spending(longer: Any, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(22 * 2**20))
    for place in ("private", "output"):
        longer.configure(**{place: str(small_disk / place)})
        refused = longer.command("release", "release.yaml")
        assert refused.returncode == 2, refused.stderr
        assert "of disk" in refused.stderr
        assert "Nothing was spent" in refused.stderr
    assert not (longer.root / "ledger.db").exists()


def test_an_interrupt_from_the_keyboard(longer: Any) -> None:
    with KeyWatch(longer.root) as watch:
        process = longer.start("release", "release.yaml")
        wait_until(lambda: receipts(longer) >= 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 6, errors
        assert [line.strip() for line in messages(errors)] == [
            "scoreshield: interrupted; run the same command again to resume"
        ]
        finish(longer, watch)


def messages(errors: str) -> list[str]:
    """What was written for a person: the lines that are no progress events."""
    return [line for line in errors.splitlines() if line and not line.startswith("{")]
