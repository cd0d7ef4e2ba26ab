"""A whole release, from configuration to manifest; every step can be repeated after a crash.

Order is the guarantee: budget is reserved before the key is made; the key is bound to the gallery
and recorded before the first noise bit; the manifest is written after every array; the ledger
commits after the manifest; the key is destroyed last.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.budget import existing_account, open_ledger, request_for
from pipeline.config import Config
from pipeline.durable import make_private
from pipeline.errors import BudgetRefused, ConfigurationError, IntegrityFailure, RunFailed
from pipeline.gallery import content_digest
from pipeline.keyfile import check_binding, commitment, create_key, destroy_key
from pipeline.ledger import Account, Entry, Ledger
from pipeline.open import open_release
from pipeline.plan import check_fits
from pipeline.progress import JsonLines, Reporter, Tee
from pipeline.publish import STORE, describe_arrays, finish
from pipeline.run import Run, first_difference, free_disk, prepare_run, run_settings
from pipeline.signing import load_or_create_signing_key, sign
from pipeline.sources import latest_gallery, prepare_gallery
from scoreshield.manifest import (
    Manifest,
    NoisyRecord,
    PostProcessing,
    build_manifest,
    describe_composition,
    installed_versions,
)

_SOFTWARE = (
    "scoreshield",
    "numpy",
    "scipy",
    "zarr",
    "dask",
    "distributed",
    "cryptography",
    "mpmath",
)


@dataclass(frozen=True)
class Outcome:
    """How a release command ended."""

    path: Path
    newly: bool
    """False where the release was finished before, and nothing was spent now."""
    manifest: Manifest

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "release_id": self.manifest.release_id,
            "path": str(self.path),
            "newly_released": self.newly,
            "epsilon": self.manifest.privacy.epsilon,
            "delta": self.manifest.privacy.delta,
            "method": self.manifest.post_processing.method,
            "converged": self.manifest.post_processing.converged,
        }

    def to_text(self) -> str:
        """For a person."""
        privacy, projection = self.manifest.privacy, self.manifest.post_processing
        lead = "released" if self.newly else "already released, nothing was spent"
        lines = [
            f"{lead}: {self.path}",
            f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}, "
            f"adjacency {privacy.adjacency}",
            f"projection {projection.method}, {projection.iterations} iterations",
        ]
        if not projection.converged:
            lines.append(
                "WARNING: the projection stopped before it reached its tolerance; the release is "
                "valid, and projection.max_iterations is where to allow it more"
            )
        if not projection.feasible:
            lines.append("WARNING: entries are clipped only; the matrix need not be PSD")
        return "\n".join([*lines, f"read about it: scoreshield show {self.path}"])


def release(config: Config, reporter: Reporter) -> Outcome:
    """Make the configured release, resume it, or report it where it is finished.

    Raises
    ------
    ScoreShieldError
        With the exit code of :mod:`pipeline.errors`; a repeated call resumes after any of them.
    """
    try:
        make_private(config.private)
        gallery = prepare_gallery(config, reporter)
        run = prepare_run(config, gallery)
        with run.folder.locked(), _logged(run, reporter) as tee:
            run.folder.check_settings(run_settings(config, gallery))
            newly = not run.published
            if newly:
                _make(run, tee)
            return _conclude(run, newly)
    except OSError as error:
        raise RunFailed(
            f"{error}; finished work is kept: put this right (disk space, permissions) and run "
            "the same command again to resume"
        ) from error


def abandon(config: Config) -> Account:
    """Give up an unfinished release: its budget stays spent, its key and noise are destroyed.

    Raises
    ------
    BudgetRefused
        Nothing was reserved under this configuration, or the release is published.
    """
    gallery = latest_gallery(config)
    if gallery is None:
        raise BudgetRefused(
            "this configuration's source was never ingested, so nothing is reserved"
        )
    run = prepare_run(config, gallery)
    ledger = Ledger.open(config.ledger.url)
    with run.folder.locked():
        if run.published:
            raise BudgetRefused(f"{run.release} is published and can't be abandoned any more")
        ledger.abandon(gallery.lineage, run.release_id)
        destroy_key(run.folder.key_file)
        run.folder.discard_noise()
        shutil.rmtree(run.folder.scratch, ignore_errors=True)
        _remove_unfinished(run.release)
    return ledger.account(gallery.lineage)


def _make(run: Run, reporter: Reporter) -> None:
    """Everything up to the manifest."""
    _check_output(run)
    _check_fits(run)
    digest = content_digest(run.gallery)
    ledger = open_ledger(run.config, run.gallery, digest)
    entry = ledger.reserve(run.gallery.lineage, run.release_id, request_for(run.mechanism))
    reporter.note("reserved", release=run.release_id, epsilon=entry.request.epsilon)
    _secure_key(run, ledger, entry, digest)
    run.folder.record_start(run_settings(run.config, run.gallery), digest)

    from pipeline import stages
    from pipeline.cluster import open_cluster

    with open_cluster(run.config.cluster, run.folder.scratch) as client:
        noisy = stages.perturb(run, client, reporter)
        _check_unchanged(run, digest)
        post_processing = stages.project(run, client, reporter)
        stages.publish(run, client, reporter)
    manifest = _describe(run, ledger.account(run.gallery.lineage), noisy, post_processing)
    finish(run.release, sign(manifest, load_or_create_signing_key(run.config.private)))


def _check_output(run: Run) -> None:
    """Find out before anything is spent whether the release can be written."""
    try:
        run.config.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run.config.output):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"output: nothing can be written in {run.config.output} ({error.strerror}); name "
            "another folder, or change its permissions. Nothing was spent by this attempt"
        ) from error


def _check_fits(run: Run) -> None:
    """Refuse a plan that fits neither the workers nor the disks; output may be a disk of its own.

    What an earlier attempt holds already counts as free: it is not needed twice.
    """
    private, output = run.config.private, run.config.output
    limit = int(run.config.cluster.memory_limit)
    free = free_disk(private) + run.folder.disk_used()
    if private.stat().st_dev == output.stat().st_dev:
        check_fits(run.plan, limit, free)
        return
    inside = tuple(stage for stage in run.plan.stages if stage.name != "publish")
    outside = tuple(stage for stage in run.plan.stages if stage.name == "publish")
    check_fits(replace(run.plan, stages=inside), limit, free)
    check_fits(replace(run.plan, stages=outside), limit, free_disk(output))


def _check_unchanged(run: Run, digest: bytes) -> None:
    """Nothing is made of noisy blocks whose gallery was changed while they were made."""
    if content_digest(run.gallery) == digest:
        return
    # Their receipts would vouch for them even once the gallery is restored.
    run.folder.discard_noise()
    raise IntegrityFailure(
        f"{run.gallery.path} was changed while release {run.release_id} was being made; its noisy "
        "blocks were removed. Restore the gallery and run the same command again, or abandon the "
        "release (scoreshield ledger abandon) and release under a new name"
    )


def _conclude(run: Run, newly: bool) -> Outcome:
    """Commit the spend and destroy the key, also where an earlier attempt got no further."""
    manifest = open_release(run.release).manifest
    _check_same_release(run, manifest)
    if not newly and not run.folder.started_on(content_digest(run.gallery)):
        raise IntegrityFailure(
            f"{run.release} was made from other content than {run.gallery.path} holds now, and a "
            "release never changes. Restore the gallery, or release it as it is now under another "
            "name ('release:')"
        )
    if newly or _unsettled(run):
        Ledger.open(run.config.ledger.url).commit(run.gallery.lineage, run.release_id)
        destroy_key(run.folder.key_file)
    shutil.rmtree(run.folder.projection, ignore_errors=True)
    shutil.rmtree(run.folder.scratch, ignore_errors=True)
    return Outcome(run.release, newly, manifest)


def _unsettled(run: Run) -> bool:
    """Whether a published release still has a key, or is only reserved in the ledger."""
    if run.folder.key_file.exists():
        return True
    account = existing_account(run.config, run.gallery)
    entry = account.find(run.release_id) if account is not None else None
    return entry is not None and entry.state == "reserved"


def _check_same_release(run: Run, manifest: Manifest) -> None:
    """A release of that name may have been made elsewhere, from another configuration."""
    privacy, mechanism = run.config.privacy, run.mechanism
    composition = manifest.composition
    found = {
        "lineage": composition.lineage if composition is not None else None,
        "n": manifest.shape.n,
        "d": manifest.shape.d,
        "privacy": {
            "epsilon": manifest.privacy.epsilon,
            "delta": manifest.privacy.delta,
            "adjacency": manifest.privacy.adjacency,
            "radius": manifest.privacy.radius,
            "score_range": manifest.mechanism.score_range,
        },
        "projection": {"method": manifest.post_processing.method},
        "arrays": sorted(manifest.arrays.keys() - {"diagonal"}),
    }
    expected = {
        "lineage": run.gallery.lineage,
        "n": run.gallery.n,
        "d": run.gallery.d,
        "privacy": {
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "radius": privacy.radius,
            "score_range": (mechanism.score_range.low, mechanism.score_range.high),
        },
        "projection": {"method": run.plan.method},
        "arrays": sorted(run.config.arrays),
    }
    difference = first_difference(found, expected)
    if difference is not None:
        place, before, now = difference
        raise ConfigurationError(
            f"{run.release} is another release: it has {place} = {before!r}, this configuration "
            f"says {now!r}. Give the release another name ('release:') or another output folder"
        )


def _remove_unfinished(folder: Path) -> None:
    """Remove what an interrupted publication left."""
    shutil.rmtree(folder / STORE, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _secure_key(run: Run, ledger: Ledger, entry: Entry, digest: bytes) -> None:
    """Make the key once, or check that it is the one this run was started with.

    Raises
    ------
    IntegrityFailure
        The key is gone, is another one, or is bound to another gallery or other settings.
    """
    key_file = run.folder.key_file
    if entry.state == "committed" and not key_file.exists():
        # Published before and lost since: intact noisy blocks are enough to publish them again.
        return
    if key_file.exists():
        check_binding(key_file, digest, run.release_id, run.mechanism)
    elif entry.key_commitment is None:
        create_key(key_file, digest, run.release_id, run.mechanism)
    else:
        raise IntegrityFailure(
            f"the key of release {run.release_id} is gone ({key_file}), and fresh noise on the "
            "same gallery would average out with noise already made. Restore the file, or give the "
            "release up with 'scoreshield ledger abandon CONFIG' and release under another name"
        )
    ledger.commit_key(run.gallery.lineage, run.release_id, commitment(key_file))


def _describe(
    run: Run, account: Account, noisy: NoisyRecord, post_processing: PostProcessing
) -> Manifest:
    names = [entry.release_id for entry in account.entries]
    earlier = account.entries[: names.index(run.release_id)]
    own = account.entries[len(earlier)]
    return build_manifest(
        run.mechanism,
        post_processing,
        release_id=run.release_id,
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
        software={"python": platform.python_version(), **installed_versions(*_SOFTWARE)},
        arrays=describe_arrays(run.release),
        noisy=noisy,
        composition=describe_composition(
            account.lineage,
            account.budget.epsilon,
            account.budget.delta,
            sum((entry.spend for entry in earlier), start=0 * own.spend),
            own.spend,
        ),
    )


@contextmanager
def _logged(run: Run, reporter: Reporter) -> Iterator[Reporter]:
    """Report to the run's own log as well."""
    with run.folder.log.open("a", encoding="utf-8") as file:
        yield Tee(reporter, JsonLines(file))
