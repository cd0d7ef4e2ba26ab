"""A curator's folder, real commands run in it, and eyes on what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from pipeline.config.model import Config, load_config
from pipeline.gallery.dense import read_rows
from pipeline.ingest.sources import known_gallery
from pipeline.ledger import Account
from pipeline.progress import Reporter, Tee
from pipeline.project.dense import assemble
from pipeline.run.budget import existing_account, request_for
from pipeline.run.release import Outcome, release
from pipeline.run.run import Run, prepare_run
from pipeline.storage import blocks
from scoreshield.inmemory import perturb_gram

N, D, SIDE = 300, 16, 64
"""Fifteen blocks, the last ones with an edge."""
COMMAND = str(Path(sys.executable).with_name("scoreshield"))


def embeddings(n: int = N, seed: int = 1) -> NDArray[np.float32]:
    """Vectors around a common mean: one component stands out of any moderate noise."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(n, D)) + 1.5).astype(np.float32)


class Interrupted(Exception):
    """Ends a run in this process at a chosen moment."""


class InterruptAt(Tee):
    """A reporter that raises once ``done`` units of ``stage`` are finished."""

    def __init__(self, stage: str, done: int) -> None:
        super().__init__()
        self._wanted, self._done, self._stage = stage, done, ""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage = stage

    def advance(self, done: int, **figures: Any) -> None:
        if self._stage == self._wanted and done == self._done:
            raise Interrupted


@dataclass
class Curator:
    """A folder with a source, a configuration and everything that commands make of them."""

    root: Path
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "gallery": "source.npy",
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
        }
    )

    def write_source(self, n: int = N, seed: int = 1) -> Path:
        """The source that the configuration names."""
        path = self.root / "source.npy"
        np.save(path, embeddings(n, seed))
        return path

    def configure(self, name: str = "release.yaml", **changes: Any) -> Path:
        """Write a configuration that differs from ``settings`` in ``changes``."""
        path = self.root / name
        path.write_text(yaml.safe_dump({**self.settings, **changes}))
        return path

    def load(self, **changes: Any) -> Config:
        """The configuration as the pipeline sees it."""
        return load_config(self.configure(**changes))

    def release(self, reporter: Reporter | None = None, **changes: Any) -> Outcome:
        """Release in this process, on worker processes of its own."""
        return release(self.load(**changes), reporter or Tee())

    def interrupt(self, stage: str, done: int, **changes: Any) -> None:
        """Leave a run unfinished."""
        with pytest.raises(Interrupted):
            self.release(InterruptAt(stage, done), **changes)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command; a process group of its own, output in pipes."""
        return subprocess.Popen(
            [COMMAND, *arguments],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            **options,
        )

    def command(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*arguments, **options)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def prepared(self, **changes: Any) -> Run:
        """The run of a configuration whose source was ingested."""
        config = self.load(**changes)
        gallery = known_gallery(config)
        assert gallery is not None
        return prepare_run(config, gallery)

    def account(self, **changes: Any) -> Account | None:
        """What the ledger says of the gallery, None where nothing is recorded."""
        config = self.load(**changes)
        gallery = known_gallery(config)
        return None if gallery is None else existing_account(config, gallery)

    def assert_spent_once(self, **changes: Any) -> None:
        """The release is committed, and the account holds its one spend."""
        run, account = self.prepared(**changes), self.account(**changes)
        assert account is not None
        assert [(entry.release_id, entry.state) for entry in account.entries] == [
            (run.release_id, "committed")
        ]
        assert account.spent == request_for(run.mechanism).spend
        assert not run.folder.key_file.exists()

    def noisy(self, **changes: Any) -> NDArray[np.float32]:
        """The noisy matrix on disk."""
        run = self.prepared(**changes)
        blocks._array.cache_clear()
        return assemble(str(run.folder.store), run.plan.triangle)

    def expected_noisy(self, key: bytes, **changes: Any) -> NDArray[np.float32]:
        """The noisy matrix that a run which nothing disturbs makes with ``key``."""
        run = self.prepared(**changes)
        rows = read_rows(run.gallery.path, 0, run.gallery.n)
        return perturb_gram(rows, run.mechanism, key, run.release_id, run.plan.encoding)


class KeyWatch:
    """Reads the release key while it exists, as its owner can."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.keys: list[bytes] = []

    def __enter__(self) -> KeyWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def key(self) -> bytes:
        """The one key that was seen."""
        assert len(self.keys) == 1, f"{len(self.keys)} keys were seen"
        return self.keys[0]

    def look(self) -> None:
        """Note a key that is there now."""
        for path in self._folder.glob("private/runs/*/release.key"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                key = bytes.fromhex(json.loads(path.read_text())["key"])
                if key not in self.keys:
                    self.keys.append(key)

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.look()


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


@pytest.fixture
def curator(tmp_path: Path) -> Curator:
    """A fresh folder with a source of 300 records."""
    fresh = Curator(tmp_path)
    fresh.write_source()
    return fresh


@pytest.fixture(scope="session")
def toolbox() -> type:
    """The builders of this module."""

    class Toolbox:
        curator = Curator
        key_watch = KeyWatch
        embeddings = staticmethod(embeddings)
        wait_until = staticmethod(wait_until)
        interrupted = Interrupted
        interrupt_at = InterruptAt
        n, d, side = N, D, SIDE

    return Toolbox


@dataclass(frozen=True)
class Finished:
    """A release made by the command, and the key that was seen while it ran."""

    curator: Curator
    key: bytes
    path: Path
    output: str
    errors: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One command from .npy to release on two workers; not to be changed."""
    made = Curator(tmp_path_factory.mktemp("finished"))
    made.write_source()
    made.settings["cluster"] = {"workers": 2, "memory_limit": "1GiB"}
    made.configure()
    with KeyWatch(made.root) as watch:
        done = made.command("release", "release.yaml", "--json")
    assert done.returncode == 0, done.stderr
    path = Path(json.loads(done.stdout)["path"])
    return Finished(made, watch.key, path, done.stdout, done.stderr)
