"""A curator's folder: releases made in it, and what a test may look at afterwards."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.ingest.sources import known_gallery
from pipeline.ledger import Account
from pipeline.perturb.keyfile import bound_message
from pipeline.perturb.secret import unsafe_key
from pipeline.plan.geometry import Triangle
from pipeline.progress import Reporter, Tee
from pipeline.project.dense import assemble
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.outcome import Outcome
from pipeline.run.prepare import prepare_run
from pipeline.run.release import release
from pipeline.run.run import Run
from pipeline.run.unsafe_seed import UnsafeSeed
from pipeline.storage import blocks
from scoreshield.inmemory import perturb_gram
from scoreshield.mechanisms.gaussian import noisy_block
from tests.harness.cluster import THREADS
from tests.harness.command import Ended, run_command, run_process, start_command
from tests.harness.interruptions import InterruptAt, Interrupted, KeyWatch

N, D, SIDE = 300, 16, 64
"""Fifteen blocks, the last ones with an edge."""
ONE_WORKER = {"workers": 1, "memory_limit": "1GiB"}
TWO_WORKERS = {"workers": 2, "memory_limit": "1GiB"}


def embeddings(n: int = N, seed: int = 1) -> NDArray[np.float32]:
    """Vectors around a common mean: one component stands out of any moderate noise."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(n, D)) + 1.5).astype(np.float32)


def default_settings() -> dict[str, Any]:
    """A small release of the source that :meth:`Curator.write_source` writes."""
    return {
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
        "cluster": ONE_WORKER,
    }


@dataclass
class Curator:
    """A folder with a source, a configuration and everything that commands make of them.

    Every ``**changes`` are of the configuration; ``unsafe_seed`` among them asks for test mode.

    Attributes
    ----------
    processes : release on worker processes, as the product does, instead of threads of this one
    """

    root: Path
    settings: dict[str, Any] = field(default_factory=default_settings)
    processes: bool = False

    def write_source(self, n: int = N, seed: int = 1) -> Path:
        """The source that the configuration names."""
        path = self.root / "source.npy"
        np.save(path, embeddings(n, seed))
        return path

    def write_secret(self, secret: bytes) -> dict[str, str]:
        """An operator's secret beside the configuration, and the section that names it."""
        path = self.root / "master.secret"
        path.write_bytes(secret.hex().encode() + b"\n")
        path.chmod(0o600)
        return {"file": path.name}

    def beside(self, name: str, seed: int = 1) -> Curator:
        """Another curator, with a folder and a source of its own."""
        other = Curator(self.root / name)
        other.root.mkdir()
        other.write_source(seed=seed)
        return other

    def configure(self, name: str = "release.yaml", **changes: Any) -> Path:
        """Write a configuration that differs from ``settings`` in ``changes``; None leaves out."""
        content = {
            key: value for key, value in {**self.settings, **changes}.items() if value is not None
        }
        path = self.root / name
        path.write_text(yaml.safe_dump(content))
        return path

    def load(self, **changes: Any) -> Config:
        """The configuration as the pipeline sees it."""
        return load_config(self.configure(**changes))

    def release(
        self,
        reporter: Reporter | None = None,
        unsafe_seed: int | None = None,
        due: str | None = None,
        performance: bool = False,
        **changes: Any,
    ) -> Outcome:
        """Release in this process; of a schedule, for the period that is ``due``."""
        config = self.load(**changes)
        with self._workers():
            return release(config, reporter or Tee(), unsafe_seed, due, performance)

    def interrupt(self, stage: str, done: int, **changes: Any) -> None:
        """Leave a run unfinished."""
        with pytest.raises(Interrupted):
            self.release(InterruptAt(stage, done), **changes)

    def command(self, *arguments: str) -> Ended:
        """Run a command in this process."""
        with self._workers():
            return run_command(self.root, *arguments)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        return start_command(self.root, *arguments, **options)

    def process(self, *arguments: str, **options: Any) -> Ended:
        """Run a command in a process of its own to its end."""
        return run_process(self.root, *arguments, **options)

    def _workers(self) -> AbstractContextManager[None]:
        return nullcontext() if self.processes else THREADS.instead_of_processes()

    def prepared(self, unsafe_seed: int | None = None, **changes: Any) -> Run:
        """The run of a configuration whose source was ingested."""
        config = self.load(**changes)
        gallery = known_gallery(config)
        assert gallery is not None
        if unsafe_seed is None:
            return prepare_run(config, gallery)
        return prepare_run(config, gallery, UnsafeSeed(unsafe_seed))

    def account(self, **changes: Any) -> Account | None:
        """What the ledger says of the gallery, None where nothing is recorded."""
        config = self.load(**changes)
        gallery = known_gallery(config)
        return None if gallery is None else ConfiguredLedger(config).account(gallery.lineage)

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
        store, geometry = run.folder.store, run.plan.geometry
        if isinstance(geometry, Triangle):
            return assemble(store, geometry)
        whole = np.full((geometry.m, geometry.n), np.nan, dtype=np.float32)
        for index in range(geometry.count):
            whole[geometry.region(index)] = blocks.read_block(store, geometry, index)
        return whole

    def expected_noisy(self, key: bytes, **changes: Any) -> NDArray[np.float32]:
        """The noisy matrix that a run which nothing disturbs makes with ``key``."""
        run = self.prepared(**changes)
        rows = read_rows(run.gallery.path, 0, run.gallery.n)
        if run.queries is None:
            return perturb_gram(rows, run.mechanism, key, run.release_id, run.plan.encoding)
        return noisy_block(run.mechanism, run.queries.rows, rows, 0, 0, key, run.release_id)

    def seeded_key(self, unsafe_seed: int, **changes: Any) -> bytes:
        """The key of a run in test mode."""
        run = self.prepared(unsafe_seed, **changes)
        content = run.bound_content(content_digest(run.gallery))
        return unsafe_key(unsafe_seed, bound_message(content, run.release_id, run.mechanism))


@dataclass(frozen=True)
class Finished:
    """A release made by the command, and the key that was seen while it ran."""

    curator: Curator
    key: bytes
    path: Path
    output: str
    errors: str


def finished_by(curator: Curator) -> Finished:
    """Release by the command, on two worker processes."""
    curator.settings["cluster"] = TWO_WORKERS
    curator.configure()
    with KeyWatch(curator.root) as watch:
        done = curator.process("release", "release.yaml", "--json")
    assert done.returncode == 0, done.stderr
    return Finished(curator, watch.key, Path(done.json["path"]), done.stdout, done.stderr)
