"""A whole release, from configuration to manifest; every step can be repeated after a crash.

Order is the guarantee: the cluster is checked before anything is spent; budget is reserved before
the key is made; the key is bound to the gallery and recorded before the first noise bit; the
manifest is written after every array; the ledger commits after the manifest; the key is destroyed
last. Test mode takes the same way without the
ledger, and everything it makes says NOT PRIVATE.
"""

from __future__ import annotations

import math
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.cluster.patience import patience
from pipeline.cluster.performance import StageReports
from pipeline.config.model import Config
from pipeline.errors import (
    BudgetRefused,
    ConfigurationError,
    IntegrityFailure,
    RunFailed,
    in_words,
)
from pipeline.gallery.open import content_digest
from pipeline.ingest.sources import latest_gallery, prepare_gallery, source_shape
from pipeline.ledger import Account, Entry, Ledger
from pipeline.perturb.keyfile import (
    bound_message,
    check_binding,
    commitment,
    commitment_of,
    create_key,
    destroy_key,
    read_key,
    store_key,
)
from pipeline.perturb.secret import derive_key, read_secret, unsafe_key
from pipeline.plan.release import StagePlan, check_fits
from pipeline.progress import JsonLines, Reporter, Tee
from pipeline.publish.gram import MANIFEST, describe_arrays, finish
from pipeline.publish.signing import check_signing_key, public_key, sign, signing_key
from pipeline.reader.open import open_release
from pipeline.run.budget import (
    check_affordable,
    existing_account,
    existing_ledger,
    open_ledger,
    recognised,
    request_for,
)
from pipeline.run.metrics import exported
from pipeline.run.output import checked_places, release_claim, remove_noise, remove_unfinished
from pipeline.run.record import Timings, write_record
from pipeline.run.run import (
    Run,
    RunFolder,
    configured_queries,
    disk_used,
    first_difference,
    free_disk,
    prepare_run,
    prepare_test_run,
    run_folder,
)
from pipeline.run.schedule import current_period, in_period, scheduled
from pipeline.storage.blocks import damaged_blocks
from pipeline.storage.durable import make_private
from pipeline.storage.lock import without_empty
from pipeline.storage.place import Place
from scoreshield.manifest.build import build_manifest, describe_composition, installed_versions
from scoreshield.manifest.schema import Composition, Manifest, NoisyRecord, PostProcessing

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

    path: Place
    newly: bool
    """False where the release was finished before, and nothing was spent now."""
    manifest: Manifest

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        signature = self.manifest.signature
        return {
            "release_id": self.manifest.release_id,
            "private": self.manifest.private,
            "not_private_reason": self.manifest.not_private_reason,
            "path": str(self.path),
            "newly_released": self.newly,
            "epsilon": self.manifest.privacy.epsilon,
            "delta": self.manifest.privacy.delta,
            "method": self.manifest.post_processing.method,
            "converged": self.manifest.post_processing.converged,
            "public_key": None if signature is None else signature.public_key,
        }

    def to_text(self) -> str:
        """For a person."""
        privacy, projection = self.manifest.privacy, self.manifest.post_processing
        shape = self.manifest.shape
        made = (
            f"projection {projection.method}, {projection.iterations} iterations"
            if shape.m is None
            else f"{shape.m} x {shape.n} scores, clipped to their range"
        )
        lead = "released" if self.newly else "already released, nothing was spent"
        lines = [
            f"{lead}: {self.path}",
            f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}, "
            f"adjacency {privacy.adjacency}",
            made,
        ]
        if not self.manifest.private:
            lines.insert(0, f"NOT PRIVATE: {self.manifest.not_private_reason}")
        if not projection.converged:
            lines.append(
                "WARNING: the projection stopped before it reached its tolerance; the release is "
                "valid, and projection.max_iterations is where to allow it more"
            )
        if shape.m is None and projection.rank == 0:
            lines.append(
                "WARNING: nothing rose above the noise, so the released matrix is the identity"
            )
        elif self.manifest.forecast is not None and not self.manifest.forecast.carries_signal:
            lines.append(
                "WARNING: no component of the gallery could be told from the noise; 'scoreshield "
                "plan' says what would change that"
            )
        if not projection.feasible:
            lines.append("WARNING: entries are clipped only; the matrix need not be PSD")
        return "\n".join([*lines, f"read about it: scoreshield show {self.path}"])


def release(
    config: Config,
    reporter: Reporter,
    unsafe_seed: int | None = None,
    period: str | None = None,
    performance: bool = False,
) -> Outcome:
    """Make the configured release, resume it, or report it where it is finished.

    Parameters
    ----------
    unsafe_seed : makes a release in test mode, for demonstrations that anybody can repeat: its
        noise follows from this seed, nothing is asked of the ledger, and it is NOT PRIVATE
    period : of a configuration with a schedule, the period to release for; the present one if None.
        A release that an earlier period missed is made of the gallery as it is now
    performance : keep Dask's report of each stage in the run's private folder

    Raises
    ------
    ScoreShieldError
        With the exit code of :mod:`pipeline.errors`; a repeated call resumes after any of them.
    """
    due = current_period(config, period)
    config = in_period(config, due)
    with exported(config.metrics) as exporter:
        told = reporter if exporter is None else Tee(reporter, exporter)
        outcome = _reported(config) if due is not None and unsafe_seed is None else None
        if outcome is None:
            outcome = _released(config, told, unsafe_seed, performance)
        if exporter is not None:
            exporter.finish(0, outcome.manifest)
        return outcome


def _released(
    config: Config, reporter: Reporter, unsafe_seed: int | None, performance: bool
) -> Outcome:
    private, output = config.private, config.output
    made = [private / "runs", private / "test-runs", private]
    try:
        with without_empty(*made, *([output] if isinstance(output, Path) else [])):
            make_private(private)
            if config.regime == "scores":
                # Queries that can't be used are found out before a large gallery is ingested.
                configured_queries(config, source_shape(config)[1])
            gallery = prepare_gallery(config, reporter)
            run = (
                prepare_run(config, recognised(config, gallery))
                if unsafe_seed is None
                else prepare_test_run(config, gallery, unsafe_seed)
            )
            return _driven(run, reporter, performance)
    except OSError as error:
        raise RunFailed(
            f"{in_words(error)}; finished work is kept: put this right (disk space, permissions) "
            "and run the same command again to resume"
        ) from error


def _driven(run: Run, reporter: Reporter, performance: bool) -> Outcome:
    timings = Timings()
    with run.folder.locked(), _logged(run, reporter, timings) as tee:
        run.folder.check_settings(run.settings)
        newly = not run.published
        if newly:
            _make(run, tee, StageReports(run.folder.performance if performance else None))
        return _conclude(run, newly, timings)


def _reported(config: Config) -> Outcome | None:
    """The scheduled release of a period that is published, whatever became of its gallery since.

    The gallery of a schedule changes between its releases, and a job that is started once more must
    not fail for it. A spend that is only reserved yet is committed, and the key destroyed.
    """
    folder = RunFolder(config.private / "runs" / str(config.release))
    published = config.output / str(config.release)
    settings = folder.load_settings()
    if settings is None or not (published / MANIFEST).exists():
        return None
    with folder.locked():
        curator = public_key(signing_key(config.private, config.output))
        manifest = open_release(published, verify_key=curator).manifest
        if manifest.release_id != folder.path.name:
            raise IntegrityFailure(
                f"{published} holds release {manifest.release_id}, expected {folder.path.name}; "
                "somebody put it there. Remove it, or name another output folder"
            )
        existing_ledger(config).commit(str(settings["lineage"]), folder.path.name)
        destroy_key(folder.key_file)
        release_claim(folder, published)
    return Outcome(published, False, manifest)


def abandon(config: Config, release_id: str | None = None) -> Account:
    """Give up an unfinished release: its budget stays spent, its key and noise are destroyed.

    Parameters
    ----------
    release_id : names a run whose source or settings have changed since, so that the
        configuration no longer leads to it; None for the release of the configuration

    Raises
    ------
    BudgetRefused
        Nothing was reserved under that name, or the release is published.
    """
    lineage, folder, published = (
        _configured_run(scheduled(config))
        if release_id is None
        else _recorded_run(config, release_id)
    )
    ledger = existing_ledger(config)
    with folder.locked():
        if (published / MANIFEST).exists():
            raise BudgetRefused(f"{published} is published and can't be abandoned any more")
        ledger.abandon(lineage, folder.path.name)
        destroy_key(folder.key_file)
        remove_noise(folder)
        remove_unfinished(folder, published)
    return ledger.account(lineage)


def _configured_run(config: Config) -> tuple[str, RunFolder, Place]:
    """Lineage, run folder and release folder of a configuration's run."""
    gallery = latest_gallery(config)
    if gallery is None:
        raise BudgetRefused(
            "this configuration's source was never ingested, so nothing is reserved"
        )
    run = prepare_run(config, gallery)
    return gallery.lineage, run.folder, run.release


def _recorded_run(config: Config, release_id: str) -> tuple[str, RunFolder, Place]:
    """The same for a run named by its release, from its own record."""
    folder = run_folder(config, "runs", release_id)
    named = Path(release_id).name == release_id
    settings = folder.load_settings() if named else None
    if settings is None:
        raise BudgetRefused(
            f"no run of that name was started: {folder.path} holds no record. 'scoreshield ledger "
            "show CONFIG' lists the releases of this gallery"
        )
    return str(settings["lineage"]), folder, config.output / release_id


def _make(run: Run, reporter: Reporter, reports: StageReports) -> None:
    """Everything up to the manifest."""
    from pipeline.cluster import open_cluster
    from pipeline.run import stages
    from pipeline.run.preflight import preflight

    with checked_places(run):
        check_signing_key(run.config.private, run.config.output)
        _check_fits(run)
        digest = content_digest(run.gallery)
        _check_started_on(run, digest)
        if run.unsafe_seed is None:
            check_affordable(run.config, run.gallery, run.release_id, request_for(run.mechanism))
        cluster = run.config.cluster
        with (
            open_cluster(cluster, run.folder.scratch) as client,
            patience(cluster.task_timeout),
        ):
            preflight(run, client, digest)
            key_commitment = _start(run, digest, reporter)
            with reports.of("perturb"):
                noisy = stages.perturb(run, client, reporter, key_commitment)
            _check_unchanged(run, digest)
            with reports.of("project"):
                post_processing = stages.project(run, client, reporter)
            with reports.of("publish"):
                stages.publish(run, client, reporter)
    manifest = _describe(run, noisy, post_processing)
    finish(run.release, sign(manifest, signing_key(run.config.private, run.config.output)))


def _start(run: Run, digest: bytes, reporter: Reporter) -> str:
    """Spend, secure the key and record the start; returns the key's commitment.

    Nothing that can be found out without spending is left to be found out after it.
    """
    if run.unsafe_seed is None:
        key_commitment = _spend(run, digest, reporter)
    else:
        reporter.note("NOT PRIVATE", release=run.release_id, reason=_not_private_reason(run))
        key_commitment = _secure_test_key(run, run.unsafe_seed, run.bound_content(digest))
    run.folder.record_start(run.settings, digest)
    return key_commitment


def _spend(run: Run, digest: bytes, reporter: Reporter) -> str:
    """Reserve the budget, then secure the key: in this order, and both before the first noise.

    Returns the commitment of the key that every task must find.
    """
    # A secret that can't be read is found out before anything is spent.
    secret = read_secret(run.config.secret) if run.config.secret.named else None
    ledger = open_ledger(run.config, run.gallery, digest)
    entry = ledger.reserve(run.gallery.lineage, run.release_id, request_for(run.mechanism))
    reporter.note("reserved", release=run.release_id, epsilon=entry.request.epsilon)
    return _secure_key(run, ledger, entry, run.bound_content(digest), secret)


def _check_fits(run: Run) -> None:
    """Refuse a plan that fits neither the workers nor the disks, of which there may be several.

    What an earlier attempt holds already counts as free: it is not needed twice. An object store
    does not tell what is free.
    """
    kept: dict[str, Place] = {
        "perturb": run.folder.blocks,
        "project": run.config.private,
        "publish": run.config.output,
    }
    disks: dict[int | None, list[StagePlan]] = {}
    for stage in run.plan.stages:
        disks.setdefault(_disk(kept[stage.name]), []).append(stage)
    limit = int(run.config.cluster.memory_limit)
    for disk, stages in disks.items():
        on_it = (place for place in kept.values() if _disk(place) == disk)
        free = next((free_disk(place) for place in on_it if isinstance(place, Path)), math.inf)
        used = sum(disk_used(folder) for folder in run.folder.folders() if _disk(folder) == disk)
        check_fits(replace(run.plan, stages=tuple(stages)), limit, free + used)


def _disk(place: Place) -> int | None:
    """The disk that holds a place; None for an object store."""
    return place.stat().st_dev if isinstance(place, Path) else None


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


def _conclude(run: Run, newly: bool, timings: Timings) -> Outcome:
    """Commit the spend and destroy the key, also where an earlier attempt got no further."""
    curator = public_key(signing_key(run.config.private, run.config.output))
    manifest = open_release(run.release, verify_key=curator).manifest
    _check_same_release(run, manifest)
    if not newly:
        _check_started_on(run, content_digest(run.gallery))
    if run.unsafe_seed is not None:
        destroy_key(run.folder.key_file)
    elif newly or _unsettled(run):
        existing_ledger(run.config).commit(run.gallery.lineage, run.release_id)
        destroy_key(run.folder.key_file)
    if newly or not run.folder.finished_record.exists():
        write_record(run, manifest, timings if newly else None)
    release_claim(run.folder, run.release)
    shutil.rmtree(run.folder.projection, ignore_errors=True)
    return Outcome(run.release, newly, manifest)


def _check_started_on(run: Run, digest: bytes) -> None:
    """A release is made from one content, also where it is made or settled in several attempts."""
    if not run.folder.started_on(digest):
        raise IntegrityFailure(
            f"release {run.release_id} was started on other content than {run.gallery.path} holds "
            "now, and a release never changes. Restore the gallery, or give the release up "
            "('scoreshield ledger abandon') and release it as it is now under another name "
            "('release:')"
        )


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
        "release_id": manifest.release_id,
        "not_private_reason": manifest.not_private_reason,
        "lineage": composition.lineage if composition is not None else None,
        "n": manifest.shape.n,
        "d": manifest.shape.d,
        "queries_sha256": manifest.queries_sha256,
        "privacy": {
            "epsilon": manifest.privacy.epsilon,
            "delta": manifest.privacy.delta,
            "adjacency": manifest.privacy.adjacency,
            "radius": manifest.privacy.radius,
            "score_range": manifest.mechanism.score_range,
        },
        "projection": {"method": manifest.post_processing.method},
        "precision": None if manifest.noisy is None else manifest.noisy.dtype,
        "arrays": sorted(manifest.arrays.keys() - {"diagonal", "ids"}),
    }
    expected = {
        "release_id": run.release_id,
        "not_private_reason": _not_private_reason(run),
        "lineage": run.gallery.lineage if run.unsafe_seed is None else None,
        "n": run.gallery.n,
        "d": run.gallery.d,
        "queries_sha256": None if run.queries is None else run.queries.sha256,
        "privacy": {
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "radius": privacy.radius,
            "score_range": (mechanism.score_range.low, mechanism.score_range.high),
        },
        "projection": {"method": run.plan.method},
        "precision": run.plan.encoding.dtype,
        "arrays": sorted(run.config.arrays),
    }
    difference = first_difference(found, expected)
    if difference is not None:
        place, before, now = difference
        raise ConfigurationError(
            f"{run.release} is another release: it has {place} = {before!r}, this configuration "
            f"says {now!r}. Give the release another name ('release:') or another output folder"
        )


def _secure_key(run: Run, ledger: Ledger, entry: Entry, digest: bytes, secret: bytes | None) -> str:
    """Make the key once, or check that it is the one this run was started with.

    Returns its commitment, as the ledger has it.

    Raises
    ------
    IntegrityFailure
        The key is gone, is another one, or is bound to another gallery or other settings.
    """
    key_file = run.folder.key_file
    if entry.state == "committed" and not key_file.exists():
        # Published before and lost since: intact noisy blocks are enough to publish them again.
        _check_noise_is_whole(run)
        return entry.key_commitment or ""
    if key_file.exists():
        check_binding(key_file, digest, run.release_id, run.mechanism)
        if secret is not None and read_key(key_file) != _derived_key(run, digest, secret):
            raise _another_key(run)
    elif secret is not None:
        _store_derived_key(run, entry, digest, secret)
    elif entry.key_commitment is None:
        # Blocks of a key that this ledger never saw must not be taken for this one's.
        run.folder.discard_noise()
        run.folder.make_receipts()
        create_key(key_file, digest, run.release_id, run.mechanism)
    else:
        raise IntegrityFailure(
            f"the key of release {run.release_id} is gone ({key_file}), and fresh noise on the "
            "same gallery would average out with noise already made. Restore the file, or give the "
            "release up with 'scoreshield ledger abandon CONFIG' and release under another name"
        )
    found = commitment(key_file)
    ledger.commit_key(run.gallery.lineage, run.release_id, found)
    return found


def _check_noise_is_whole(run: Run) -> None:
    """Once the key is destroyed no block can be made again."""
    damaged = damaged_blocks(str(run.folder.store), run.plan.geometry)
    if damaged:
        raise IntegrityFailure(
            f"release {run.release_id} was committed and its key destroyed, so its noise can't be "
            f"made again, and {len(damaged)} of {run.plan.geometry.count} noisy blocks in "
            f"{run.folder.store} are missing or damaged (the first is {damaged[0]}). Restore "
            f"{run.folder.path} or {run.release} from a copy; its budget stays spent"
        )


def _store_derived_key(run: Run, entry: Entry, digest: bytes, secret: bytes) -> None:
    """Derive the key from the operator's secret; where its file was lost, it is the same again.

    Raises
    ------
    IntegrityFailure
        The release had another key: the secret, the gallery or a setting is not what it was.
    """
    key = _derived_key(run, digest, secret)
    if entry.key_commitment not in (None, commitment_of(key)):
        raise _another_key(run)
    store_key(run.folder.key_file, key, digest, run.release_id, run.mechanism)


def _derived_key(run: Run, digest: bytes, secret: bytes) -> bytes:
    bound_to = bound_message(digest, run.release_id, run.mechanism)
    return derive_key(secret, run.gallery.lineage, bound_to)


def _another_key(run: Run) -> IntegrityFailure:
    return IntegrityFailure(
        f"release {run.release_id} was started with another key than its secret, gallery and "
        "settings give now, and two noises on one gallery average out. Restore what it was "
        "started with, or give the release up with 'scoreshield ledger abandon CONFIG' and "
        "release under another name"
    )


def _secure_test_key(run: Run, seed: int, digest: bytes) -> str:
    """Store the key of test mode, from its seed alone; returns its commitment.

    Raises
    ------
    IntegrityFailure
        The folder holds another key: a run that this one must not touch, or another gallery.
    """
    key_file = run.folder.key_file
    key = unsafe_key(seed, bound_message(digest, run.release_id, run.mechanism))
    if not key_file.exists():
        store_key(key_file, key, digest, run.release_id, run.mechanism)
    if read_key(key_file) != key:
        raise IntegrityFailure(
            f"{run.folder.path} holds the key of another run, or of another gallery, than this "
            "seed gives; remove that folder if nothing depends on it, or give the release another "
            "name ('release:')"
        )
    return commitment_of(key)


def _not_private_reason(run: Run) -> str | None:
    """What test mode says of its result; None for a real release."""
    if run.unsafe_seed is None:
        return None
    return (
        f"made in test mode with --unsafe-seed {run.unsafe_seed}, so anybody can recompute its "
        "noise and take it off again; no budget was spent and no ledger knows of it"
    )


def _describe(run: Run, noisy: NoisyRecord, post_processing: PostProcessing) -> Manifest:
    return build_manifest(
        run.mechanism,
        post_processing,
        release_id=run.release_id,
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
        software={"python": platform.python_version(), **installed_versions(*_SOFTWARE)},
        arrays=describe_arrays(run.release),
        noisy=noisy,
        composition=_composition(run) if run.unsafe_seed is None else None,
        queries_sha256=None if run.queries is None else run.queries.sha256,
        not_private_reason=_not_private_reason(run),
        record_kind=run.gallery.record_kind,
    )


def _composition(run: Run) -> Composition:
    """What the gallery's releases have spent, before and with this one."""
    account = existing_ledger(run.config).account(run.gallery.lineage)
    names = [entry.release_id for entry in account.entries]
    earlier = account.entries[: names.index(run.release_id)]
    own = account.entries[len(earlier)]
    return describe_composition(
        account.lineage,
        account.budget.epsilon,
        account.budget.delta,
        sum((entry.spend for entry in earlier), start=0 * own.spend),
        own.spend,
    )


@contextmanager
def _logged(run: Run, reporter: Reporter, timings: Timings) -> Iterator[Reporter]:
    """Report to the run's own log and to its record as well."""
    with run.folder.log.open("a", encoding="utf-8") as file:
        yield Tee(reporter, JsonLines(file), timings)
