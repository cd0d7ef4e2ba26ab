"""A whole release, from configuration to manifest; every step can be repeated after a crash.

Order is the guarantee: the cluster is checked before anything is spent; budget is reserved before
the key is made; the key is bound to the gallery and recorded before the first noise bit; the
manifest is written after every array; the ledger commits after the manifest; the key is destroyed
last. Test mode takes the same way without the ledger, and everything it makes says NOT PRIVATE.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.cluster.patience import patience
from pipeline.cluster.performance import StageReports
from pipeline.config.model import Config
from pipeline.errors import RunFailed, in_words
from pipeline.gallery.open import content_digest
from pipeline.ingest.sources import prepare_gallery, source_shape
from pipeline.progress import JsonLines, Reporter, Tee
from pipeline.publish.gram import finish
from pipeline.publish.signing import check_signing_key, sign, signing_key
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.conclude import conclude, finished_period
from pipeline.run.describe import describe
from pipeline.run.from_budget import FromBudget
from pipeline.run.metrics import exported
from pipeline.run.outcome import Outcome
from pipeline.run.output import checked_places
from pipeline.run.prepare import prepare_run
from pipeline.run.record import Timings
from pipeline.run.regimes import REGIMES
from pipeline.run.room import check_room
from pipeline.run.run import Run, Spending
from pipeline.run.sameness import check_started_on, check_unchanged
from pipeline.run.schedule import current_period, in_period
from pipeline.run.unsafe_seed import UnsafeSeed
from pipeline.storage.durable import make_private
from pipeline.storage.layout import RUNS, TEST_RUNS
from pipeline.storage.lock import without_empty


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
    outcome: Outcome | None = None
    with exported(config.metrics) as exporter:
        if unsafe_seed is None:
            ledger = ConfiguredLedger(config)
            spending: Spending = FromBudget(ledger)
            outcome = finished_period(config, ledger) if due is not None else None
        else:
            spending = UnsafeSeed(unsafe_seed)
        if outcome is None:
            heard = reporter if exporter is None else Tee(reporter, exporter)
            with _held_run(config, spending, heard) as (run, tee, timings):
                newly = not run.published
                if newly:
                    _make(run, tee, StageReports(run.folder.performance if performance else None))
                outcome = conclude(run, newly, timings)
        if exporter is not None:
            exporter.finish(0, outcome.manifest)
        return outcome


@contextmanager
def _held_run(
    config: Config, spending: Spending, reporter: Reporter
) -> Iterator[tuple[Run, Reporter, Timings]]:
    """The run of a configuration, which no other process drives; its log and its record listen.

    What a disk refuses leaves the run resumable.
    """
    private, output = config.private, config.output
    made = [private / RUNS, private / TEST_RUNS, private]
    try:
        with without_empty(*made, *([output] if isinstance(output, Path) else [])):
            make_private(private)
            # Queries that can't be used are found out before a large gallery is ingested.
            queries = REGIMES[config.regime].queries(config, lambda: source_shape(config)[1])
            gallery = spending.recognised(prepare_gallery(config, reporter))
            run = prepare_run(config, gallery, spending, queries)
            timings = Timings()
            with run.folder.locked(), run.folder.log.open("a", encoding="utf-8") as log:
                run.folder.check_settings(run.settings)
                yield run, Tee(reporter, JsonLines(log), timings), timings
    except OSError as error:
        raise RunFailed(
            f"{in_words(error)}; finished work is kept: put this right (disk space, permissions) "
            "and run the same command again to resume"
        ) from error


def _make(run: Run, reporter: Reporter, reports: StageReports) -> None:
    """Everything up to the manifest.

    Nothing that can be found out without spending is left to be found out after it.
    """
    from pipeline.cluster import open_cluster
    from pipeline.run import stages
    from pipeline.run.preflight import preflight

    with checked_places(run):
        check_signing_key(run.config.private, run.config.output)
        check_room(run)
        digest = content_digest(run.gallery)
        check_started_on(run, digest)
        run.spending.check_affordable(run)
        cluster = run.config.cluster
        with (
            open_cluster(cluster, run.folder.scratch) as client,
            patience(cluster.task_timeout),
        ):
            preflight(run, client, digest)
            key_commitment = run.spending.secure_key(run, digest, reporter)
            run.folder.record_start(run.settings, digest)
            with reports.of("perturb"):
                noisy = stages.perturb(run, client, reporter, key_commitment)
            check_unchanged(run, digest)
            with reports.of("project"):
                post_processing = stages.project(run, client, reporter)
            with reports.of("publish"):
                stages.publish(run, client, reporter)
    manifest = describe(run, noisy, post_processing)
    finish(run.release, sign(manifest, signing_key(run.config.private, run.config.output)))
