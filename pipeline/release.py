"""A whole release, from configuration to manifest; every step can be repeated after a crash.

Order is the guarantee: budget is reserved before the key is made; the key is bound to the gallery
and recorded before the first noise bit; the manifest is written after every array; the ledger
commits after the manifest; the key is destroyed last.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import blocks
from pipeline.budget import open_ledger, request_for
from pipeline.config import Config
from pipeline.durable import make_private
from pipeline.errors import BudgetRefused, IntegrityFailure
from pipeline.gallery import Gallery, content_digest
from pipeline.keyfile import check_binding, commitment, create_key, destroy_key
from pipeline.ledger import Account, Entry, Ledger
from pipeline.open import open_release
from pipeline.perturb import PerturbJob, perturb_block
from pipeline.plan import ReleasePlan, check_fits, plan_release
from pipeline.progress import JsonLines, Reporter, Tee
from pipeline.project import PROGRESS_TOPIC, ProjectJob, project_task, unprojected
from pipeline.publish import (
    MANIFEST,
    PublishJob,
    describe_arrays,
    finish,
    prepare_release,
    publish_block,
    publish_panel,
)
from pipeline.run import RunFolder, free_disk
from pipeline.signing import load_or_create_signing_key, sign
from pipeline.sources import known_gallery, prepare_gallery
from scoreshield.manifest import (
    Manifest,
    NoisyRecord,
    PostProcessing,
    build_manifest,
    describe_composition,
    installed_versions,
)
from scoreshield.mechanism import Mechanism, calibrate_gram

if TYPE_CHECKING:
    from distributed import Client

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
class Run:
    """Everything a run is made of, fixed before it starts."""

    config: Config
    gallery: Gallery
    plan: ReleasePlan
    release_id: str
    folder: RunFolder
    release: Path

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism."""
        return self.plan.mechanism

    @property
    def published(self) -> bool:
        """Whether the release is there, complete: the manifest is written last."""
        return (self.release / MANIFEST).exists()


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


def calibrate(config: Config, n: int, d: int) -> Mechanism:
    """The mechanism a configuration asks for on a gallery of n records of d features."""
    privacy = config.privacy
    return calibrate_gram(
        n, d, privacy.epsilon, privacy.delta, privacy.to_adjacency(), privacy.to_score_range()
    )


def plan_for(config: Config, n: int, d: int) -> ReleasePlan:
    """The plan of a configuration for a gallery of n records of d features."""
    return plan_release(
        calibrate(config, n, d),
        config.projection.method,
        config.arrays,
        config.block_side,
        config.cluster.threads_per_worker,
    )


def prepare_run(config: Config, gallery: Gallery) -> Run:
    """Fix a run's plan, name and places; nothing is written."""
    settings = run_settings(config, gallery)
    canonical = json.dumps(settings, sort_keys=True).encode()
    derived = f"{config.regime}-{hashlib.sha256(canonical).hexdigest()[:12]}"
    release_id = config.release or derived
    return Run(
        config,
        gallery,
        plan_for(config, gallery.n, gallery.d),
        release_id,
        RunFolder(config.private / "runs" / release_id),
        config.output / release_id,
    )


def run_settings(config: Config, gallery: Gallery) -> dict[str, Any]:
    """The settings that make a release what it is; places and machines are not among them."""
    return {
        "regime": config.regime,
        "lineage": gallery.lineage,
        "n": gallery.n,
        "d": gallery.d,
        "privacy": config.privacy.model_dump(mode="json"),
        "projection": config.projection.model_dump(mode="json"),
        "arrays": sorted(config.arrays),
    }


def release(config: Config, reporter: Reporter) -> Outcome:
    """Make the configured release, resume it, or report it where it is finished.

    Raises
    ------
    ScoreShieldError
        With the exit code of :mod:`pipeline.errors`; a repeated call resumes after any of them.
    """
    make_private(config.private)
    gallery = prepare_gallery(config, reporter)
    run = prepare_run(config, gallery)
    with run.folder.locked(), _logged(run, reporter) as tee:
        run.folder.pin_settings(run_settings(config, gallery))
        newly = not run.published
        if newly:
            _make(run, tee)
        return _conclude(run, newly)


def abandon(config: Config) -> Account:
    """Give up an unfinished release: its budget stays spent, its key and noise are destroyed.

    Raises
    ------
    BudgetRefused
        Nothing was reserved under this configuration, or the release is published.
    """
    gallery = known_gallery(config)
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
        shutil.rmtree(run.folder.store, ignore_errors=True)
    return ledger.account(gallery.lineage)


def _make(run: Run, reporter: Reporter) -> None:
    """Everything up to the manifest."""
    limit = int(run.config.cluster.memory_limit)
    check_fits(run.plan, limit, free_disk(run.config.output) + run.folder.disk_used())
    digest = content_digest(run.gallery)
    ledger = open_ledger(run.config, run.gallery, digest)
    entry = ledger.reserve(run.gallery.lineage, run.release_id, request_for(run.mechanism))
    reporter.note("reserved", release=run.release_id, epsilon=entry.request.epsilon)
    _secure_key(run, ledger, entry, digest)

    from pipeline.cluster import open_cluster

    with open_cluster(run.config.cluster, run.folder.scratch) as client:
        noisy = _perturb(run, client, reporter)
        post_processing = _project(run, client, reporter)
        _publish(run, client, reporter)
    manifest = _describe(run, ledger.account(run.gallery.lineage), noisy, post_processing)
    finish(run.release, sign(manifest, load_or_create_signing_key(run.config.private)))


def _conclude(run: Run, newly: bool) -> Outcome:
    """Commit the spend and destroy the key, also where an earlier attempt got no further."""
    manifest = open_release(run.release).manifest
    if manifest.composition is None or manifest.composition.lineage != run.gallery.lineage:
        raise IntegrityFailure(
            f"{run.release} is a release of another gallery; choose another name"
        )
    key_file = run.folder.key_file
    if newly or key_file.exists():
        Ledger.open(run.config.ledger.url).commit(run.gallery.lineage, run.release_id)
        destroy_key(key_file)
        shutil.rmtree(run.folder.projection, ignore_errors=True)
        shutil.rmtree(run.folder.scratch, ignore_errors=True)
    return Outcome(run.release, newly, manifest)


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


def _perturb(run: Run, client: Client, reporter: Reporter) -> NoisyRecord:
    from pipeline.window import run_tasks

    folder, triangle = run.folder, run.plan.triangle
    blocks.create_store(str(folder.store), triangle)
    job = PerturbJob(
        gallery=run.gallery.path,
        store=str(folder.store),
        receipts=str(folder.receipts),
        key_file=str(folder.key_file),
        release_id=run.release_id,
        mechanism=run.mechanism,
        triangle=triangle,
    )
    reporter.begin("perturb", triangle.count, "blocks")
    receipts: dict[int, blocks.Receipt] = {}
    for receipt in run_tasks(client, "perturb", perturb_block, job, range(triangle.count)):
        receipts[receipt.block] = receipt
        reporter.advance(len(receipts))
    reporter.end(blocks=triangle.count)
    ordered = [receipts[index] for index in range(triangle.count)]
    return NoisyRecord(
        sha256=blocks.combined_digest(ordered),
        blocks=triangle.count,
        block_side=triangle.side,
        dtype="float32",
    )


def _project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    if run.plan.method == "none":
        return unprojected(run.gallery.n)
    from pipeline.window import run_tasks

    settings, cluster = run.config.projection, run.config.cluster
    job = ProjectJob(
        noisy=str(run.folder.store),
        triangle=run.plan.triangle,
        sigma=run.mechanism.sigma,
        method=settings.method,
        tolerance=settings.tolerance,
        max_iterations=settings.max_iterations,
        rank=settings.rank,
        target=str(run.folder.projection),
        # One task has the whole cluster to itself; it may use the cores of every worker here.
        threads=cluster.workers * cluster.threads_per_worker,
    )
    reporter.begin("project", None, "iterations")

    def show(event: tuple[float, dict[str, Any]]) -> None:
        step = event[1]
        reporter.advance(step["number"], residual=step["residual"])

    client.subscribe_topic(PROGRESS_TOPIC, show)
    (summary,) = run_tasks(client, "project", project_task, job, [0])
    client.unsubscribe_topic(PROGRESS_TOPIC)
    result = summary.post_processing
    reporter.end(iterations=result.iterations, rank=result.rank, converged=result.converged)
    return result


def _publish(run: Run, client: Client, reporter: Reporter) -> None:
    from pipeline.window import run_tasks

    triangle = run.plan.triangle
    projected = run.plan.method != "none"
    job = PublishJob(
        directory=str(run.release),
        triangle=triangle,
        arrays=run.config.arrays,
        projection=str(run.folder.projection) if projected else None,
        noisy=None if projected else str(run.folder.store),
    )
    prepare_release(job)
    panels = triangle.per_side if "factor" in job.arrays else 0
    pieces = triangle.count if "gram" in job.arrays else 0
    reporter.begin("publish", panels + pieces, "blocks")
    done = 0
    for name, task, count in (
        ("publish-factor", publish_panel, panels),
        ("publish-gram", publish_block, pieces),
    ):
        for _ in run_tasks(client, name, task, job, range(count)):
            done += 1
            reporter.advance(done)
    reporter.end(blocks=done)


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
