"""One run: everything it is made of, fixed before it starts, and its private folder.

The folder holds what is needed to resume the run, and nothing that may be published.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.config.model import NOT_PRIVATE_SUFFIX, Config
from pipeline.errors import ConfigurationError, IntegrityFailure, RunFailed
from pipeline.gallery.sparse import panels_of
from pipeline.gallery.store import Gallery, is_gallery
from pipeline.ingest.queries import Queries, load_queries
from pipeline.plan.gram import GramPlan, plan_release
from pipeline.plan.memory import PanelMemory
from pipeline.plan.scores import ScoresPlan, plan_scores
from pipeline.publish.gram import MANIFEST
from pipeline.storage.blocks import RECEIPTS
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.lock import held
from pipeline.storage.place import Place, delete
from scoreshield.errors import InputRejected
from scoreshield.mechanisms.gaussian import Mechanism, calibrate_gram
from scoreshield.prepared import scores_mechanism

_CONTENT = "content_sha256"
_SEED = "unsafe_seed"


@dataclass(frozen=True)
class RunFolder:
    """Names inside a run's folder."""

    path: Path
    elsewhere: Place | None = None
    """Folder of the noisy blocks and their receipts, where they are not kept in this one."""

    @property
    def record(self) -> Path:
        """The settings the run was started with."""
        return self.path / "run.json"

    @property
    def finished_record(self) -> Path:
        """What the curator keeps of the finished run (:mod:`pipeline.run.record`)."""
        return self.path / "run-record.json"

    @property
    def key_file(self) -> Path:
        """The release key, while it exists."""
        return self.path / "release.key"

    @property
    def claim(self) -> Path:
        """By which this run knows its own claims in object stores."""
        return self.path / "claim"

    @property
    def blocks(self) -> Place:
        """Where the noisy blocks and their receipts are."""
        return self.path if self.elsewhere is None else self.elsewhere

    @property
    def store(self) -> Place:
        """The noisy blocks."""
        return self.blocks / "noisy.zarr"

    @property
    def receipts(self) -> Place:
        """One file a finished noisy block."""
        return self.blocks / RECEIPTS

    @property
    def projection(self) -> Path:
        """The finished projection, until it is published."""
        return self.path / "projection"

    @property
    def solver(self) -> Path:
        """Panels and checkpoints of a blockwise projection, until it is finished."""
        return self.path / "solver"

    @property
    def log(self) -> Path:
        """What happened, as JSON lines."""
        return self.path / "log.jsonl"

    @property
    def performance(self) -> Path:
        """Dask's reports of the stages, where they were asked for."""
        return self.path / "performance"

    @property
    def scratch(self) -> Path:
        """Where workers keep their own files."""
        return self.path / "scratch"

    def projection_done(self) -> bool:
        """Whether a finished projection waits to be published."""
        return self.projection.exists()

    def folders(self) -> list[Path]:
        """All folders of a file system that hold something of this run."""
        return [folder for folder in {self.path, self.blocks} if isinstance(folder, Path)]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold it: two processes never drive one run.

        The folder of a run that was refused before it started goes again.

        Raises
        ------
        RunFailed
            Another process holds it.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(self.path, wait=False))
            except BlockingIOError as error:
                raise RunFailed(
                    f"another process is running this release ({self.path}); wait for it, "
                    "then run the same command again"
                ) from error
            self.make_receipts()
            # What workers of a driver that was killed have left.
            self._sweep_scratch()
            try:
                yield
            finally:
                self._sweep_scratch()
                self._forget_unstarted()

    def make_receipts(self) -> None:
        """Make the folder of the receipts, which an object store needs none of."""
        if isinstance(self.receipts, Path):
            if isinstance(self.elsewhere, Path):
                make_private(self.elsewhere)
            make_private(self.receipts)

    def record_start(self, settings: dict[str, Any], content: bytes) -> None:
        """Record what the run is started with, once its key is bound to it; a record is kept.

        ``content`` is the digest of the gallery; it is as private as the gallery and stays here.
        """
        if self.load_settings() is None:
            record = {**settings, _CONTENT: content.hex()}
            text = json.dumps(record, indent=1, sort_keys=True) + "\n"
            write_atomically(self.record, text.encode())

    def load_settings(self) -> dict[str, Any] | None:
        """The settings the run was started with, or None before its start."""
        record = self._load_record()
        if record is None:
            return None
        return {name: value for name, value in record.items() if name != _CONTENT}

    def check_settings(self, settings: dict[str, Any]) -> None:
        """Refuse settings other than those the run was started with.

        Raises
        ------
        ConfigurationError
            The first difference is named.
        """
        started_with = self.load_settings()
        if started_with is None:
            return
        difference = first_difference(started_with, json.loads(json.dumps(settings)))
        if difference is not None:
            place, before, now = difference
            raise ConfigurationError(
                f"release {self.path.name} was started with {place} = {before!r}, this "
                f"configuration says {now!r}; a release can't change half way. Restore the "
                "setting, or give the release another name ('release:')"
            )

    def started_on(self, content: bytes) -> bool:
        """Whether the gallery is the one the run was started on, as far as is recorded."""
        return self.recorded_content() in (None, content.hex())

    def recorded_content(self) -> str | None:
        """The recorded digest of the gallery, in hexadecimal; as private as the gallery."""
        found: str | None = (self._load_record() or {}).get(_CONTENT)
        return found

    def discard_noise(self) -> None:
        """Remove the noisy blocks and what was made of them."""
        for folder in (self.receipts, self.store, self.projection, self.solver):
            delete(folder)

    def _sweep_scratch(self) -> None:
        """Leave the workers' folder empty, and its owner's alone."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        make_private(self.scratch)

    def _forget_unstarted(self) -> None:
        """Leave nothing of a run that has neither a key nor a record of its start."""
        if self.key_file.exists() or self.record.exists():
            return
        self.log.unlink(missing_ok=True)
        for folder in (self.scratch, self.receipts, self.elsewhere):
            if isinstance(folder, Path):
                # Receipts of an earlier attempt stay, and with them the folder.
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _load_record(self) -> dict[str, Any] | None:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise IntegrityFailure(
                f"the run record {self.record} is damaged; restore it from a copy, or give the "
                "release another name ('release:')"
            )
        return record


@dataclass(frozen=True)
class Run:
    """Everything a run is made of."""

    config: Config
    gallery: Gallery
    plan: GramPlan | ScoresPlan
    release_id: str
    folder: RunFolder
    release: Place
    queries: Queries | None
    """The public queries; None in regime gram."""
    unsafe_seed: int | None = None
    """The seed of a run in test mode, whose release is NOT PRIVATE; None for every other run."""

    @property
    def settings(self) -> dict[str, Any]:
        """What this run is recorded to have been started with."""
        settings = run_settings(self.config, self.gallery, self.queries)
        return settings if self.unsafe_seed is None else {**settings, _SEED: self.unsafe_seed}

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism."""
        return self.plan.mechanism

    def bound_content(self, gallery_digest: bytes) -> bytes:
        """What the release key is bound to besides the settings: the gallery, and the queries."""
        if self.queries is None:
            return gallery_digest
        return hashlib.sha256(gallery_digest + bytes.fromhex(self.queries.sha256)).digest()

    @property
    def published(self) -> bool:
        """Whether the release is there, complete: the manifest is written last."""
        return (self.release / MANIFEST).exists()


def prepare_run(config: Config, gallery: Gallery) -> Run:
    """Fix a run's plan, name and places; nothing is written.

    Raises
    ------
    InputRejected
        The queries of regime scores can't be read or used.
    """
    queries = configured_queries(config, gallery.d)
    settings = run_settings(config, gallery, queries)
    canonical = json.dumps(settings, sort_keys=True).encode()
    derived = f"{config.regime}-{hashlib.sha256(canonical).hexdigest()[:12]}"
    release_id = config.release or derived
    return Run(
        config,
        gallery,
        plan_for(config, gallery.n, gallery.d, queries, panels_of(gallery)),
        release_id,
        run_folder(config, "runs", release_id),
        config.output / release_id,
        queries,
    )


def prepare_test_run(config: Config, gallery: Gallery, seed: int) -> Run:
    """A run in test mode: its own names and folder, so that no real run is ever mixed up with it.

    Its derived name leaves out the lineage, which is random: the same source, settings and seed
    give the same bits anywhere.
    """
    run = prepare_run(config, gallery)
    settings = {**run.settings, "lineage": None, _SEED: seed}
    canonical = json.dumps(settings, sort_keys=True).encode()
    derived = f"{config.regime}-{hashlib.sha256(canonical).hexdigest()[:12]}"
    release_id = f"{config.release or derived}{NOT_PRIVATE_SUFFIX}"
    return replace(
        run,
        release_id=release_id,
        folder=run_folder(config, "test-runs", release_id),
        release=config.output / release_id,
        unsafe_seed=seed,
    )


def run_folder(config: Config, kind: Literal["runs", "test-runs"], release_id: str) -> RunFolder:
    """The folder of a run; its noisy blocks may be kept elsewhere."""
    elsewhere = None if config.blocks is None else config.blocks / release_id
    return RunFolder(config.private / kind / release_id, elsewhere)


def run_settings(
    config: Config, gallery: Gallery, queries: Queries | None = None
) -> dict[str, Any]:
    """The settings that make a release what it is; places and machines are not among them."""
    settings = {
        "regime": config.regime,
        "lineage": gallery.lineage,
        "n": gallery.n,
        "d": gallery.d,
        "privacy": config.privacy.model_dump(mode="json"),
        "arrays": sorted(config.arrays),
    }
    if gallery.record_kind is not None:
        settings["record_kind"] = gallery.record_kind
    if queries is None:
        return {
            **settings,
            "projection": config.projection.model_dump(mode="json"),
            "precision": config.precision,
        }
    return {**settings, "queries_sha256": queries.sha256}


def configured_queries(config: Config, d: int) -> Queries | None:
    """The queries of a configuration for records of d features; None in regime gram.

    Raises
    ------
    InputRejected
        They can't be read or used, or lie in a gallery, which is private.
    """
    if config.queries is None:
        return None
    if is_gallery(config.queries) or is_gallery(config.queries.parent):
        raise InputRejected(
            f"queries {config.queries}: found a gallery, and galleries are private; expected "
            "public embeddings, in a file that was never ingested"
        )
    return load_queries(config.queries, config.queries_key, d)


def plan_for(
    config: Config,
    n: int,
    d: int,
    queries: Queries | None = None,
    panels: PanelMemory | None = None,
) -> GramPlan | ScoresPlan:
    """The plan of a configuration for a gallery of n records of d features.

    ``panels`` says what the gallery's panels cost where they are not those of embeddings.
    """
    if queries is not None:
        privacy = config.privacy
        mechanism = scores_mechanism(
            n,
            queries.rows,
            privacy.epsilon,
            privacy.delta,
            privacy.to_adjacency(),
            privacy.to_score_range(),
        )
        threads = config.cluster.threads_per_worker
        return plan_scores(mechanism, len(queries.rows), config.block_side, threads, panels)
    plan = plan_release(
        calibrate(config, n, d),
        config.projection.method,
        config.arrays,
        config.block_side,
        config.cluster.threads_per_worker,
        config.cluster.workers,
        config.projection.form,
        config.precision,
        panels,
    )
    _check_rank(config, plan)
    return plan


def _check_rank(config: Config, plan: GramPlan) -> None:
    """Of the blockwise methods one alone takes a rank; found out before anything is spent."""
    rank, method = config.projection.rank, config.projection.method
    if plan.blockwise is not None and rank != "auto" and method != "aap":
        raise ConfigurationError(
            f"projection.rank is {rank}, but the blockwise form of method {method!r}, which "
            f"{plan.triangle.n} records take, finds its own rank; leave rank out, or use method "
            "'aap' for a truncated step"
        )


def calibrate(config: Config, n: int, d: int) -> Mechanism:
    """The mechanism a configuration asks for on a gallery of n records of d features."""
    privacy = config.privacy
    return calibrate_gram(
        n, d, privacy.epsilon, privacy.delta, privacy.to_adjacency(), privacy.to_score_range()
    )


def first_difference(
    before: dict[str, Any], now: dict[str, Any], place: str = ""
) -> tuple[str, Any, Any] | None:
    """The first setting in which two nested mappings differ, with both values."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            deeper = first_difference(old, new, f"{place}{key}.")
            if deeper is not None:
                return deeper
        elif old != new:
            return f"{place}{key}", old, new
    return None


def disk_used(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def free_disk(path: Path) -> int:
    """Bytes free for a path that may not exist yet."""
    while not path.exists():
        path = path.parent
    statistics = os.statvfs(path)
    return statistics.f_bavail * statistics.f_frsize
