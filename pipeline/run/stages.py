"""The stages of a run on a cluster: each cut into tasks, each repeatable after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distributed import Client

from pipeline.cluster.patience import current_patience
from pipeline.cluster.window import run_tasks
from pipeline.gallery.store import panels, stored_ids
from pipeline.ingest.queries import keep_queries
from pipeline.perturb.tasks import PerturbJob, ScoresJob, perturb_block, perturb_scores
from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.gram import GramPlan
from pipeline.plan.release import cache_bytes
from pipeline.plan.scores import ScoresPlan
from pipeline.progress import Reporter
from pipeline.project.blockwise import project_blockwise
from pipeline.project.dense import PROGRESS_TOPIC, ProjectJob, project_task, unprojected
from pipeline.project.progress import Solving
from pipeline.publish.gram import (
    PublishJob,
    prepare_ids,
    prepare_release,
    publish_block,
    publish_ids,
    publish_panel,
)
from pipeline.publish.scores import PublishScoresJob, prepare_scores, publish_scores
from pipeline.run.run import Run
from pipeline.storage import blocks
from scoreshield.manifest.build import describe_clipped_scores
from scoreshield.manifest.schema import NoisyRecord, PostProcessing

_ID_ROWS = 2**16


def perturb(run: Run, client: Client, reporter: Reporter, key_commitment: str) -> NoisyRecord:
    """Make every noisy block that has no intact receipt yet.

    Each task refuses any key but the one of ``key_commitment``.

    Raises
    ------
    IntegrityFailure
        The gallery, the key or the block store is not what it was.
    RunFailed
        A task failed; finished blocks are kept.
    """
    geometry = run.plan.geometry
    blocks.create_store(str(run.folder.store), geometry, run.plan.encoding)
    receipts: dict[int, blocks.Receipt] = {}
    reporter.begin("perturb", geometry.count, "blocks")
    for receipt in _noisy_blocks(run, client, key_commitment):
        receipts[receipt.block] = receipt
        reporter.advance(len(receipts))
    reporter.end(blocks=geometry.count, bytes=_disk_bytes(run, "perturb"))
    ordered = [receipts[index] for index in range(geometry.count)]
    return NoisyRecord(
        sha256=blocks.combined_digest(ordered),
        blocks=geometry.count,
        block_side=geometry.shape[1],
        dtype=run.plan.encoding.dtype,
        step=run.plan.encoding.step,
        rounding=run.plan.encoding.described(run.mechanism.sigma),
    )


def _noisy_blocks(run: Run, client: Client, key_commitment: str) -> Iterator[blocks.Receipt]:
    """Run the perturb task of the run's regime for every block, in order of completion."""
    indices = range(run.plan.geometry.count)
    if isinstance(run.plan, GramPlan):
        gram = _gram_job(run, run.plan, key_commitment)
        return run_tasks(client, "perturb", perturb_block, gram, indices)
    scores = _scores_job(run, run.plan, key_commitment)
    return run_tasks(client, "perturb", perturb_scores, scores, indices)


def _gram_job(run: Run, plan: GramPlan, key_commitment: str) -> PerturbJob:
    return PerturbJob(
        gallery=run.gallery.path,
        store=str(run.folder.store),
        receipts=str(run.folder.receipts),
        key_file=str(run.folder.key_file),
        key_commitment=key_commitment,
        release_id=run.release_id,
        mechanism=run.mechanism,
        triangle=plan.triangle,
        sparse=run.gallery.sparse,
    )


def _scores_job(run: Run, plan: ScoresPlan, key_commitment: str) -> ScoresJob:
    assert run.queries is not None  # noqa: S101
    return ScoresJob(
        gallery=run.gallery.path,
        queries=str(keep_queries(run.folder.path, run.queries)),
        queries_sha256=run.queries.sha256,
        store=str(run.folder.store),
        receipts=str(run.folder.receipts),
        key_file=str(run.folder.key_file),
        key_commitment=key_commitment,
        release_id=run.release_id,
        mechanism=run.mechanism,
        rectangle=plan.rectangle,
        sparse=run.gallery.sparse,
    )


def project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    """Project the noisy matrix in one task, or take a projection that is finished.

    Scores need no task: clipping, which their publication does, is their projection.
    """
    if isinstance(run.plan, ScoresPlan):
        return describe_clipped_scores(run.mechanism)
    if run.plan.method == "none":
        return unprojected(run.gallery.n)
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
        # As planned, not as found: a worker that is lost on the way must change no bit.
        threads=cluster.largest_team
        if run.plan.blockwise is None
        else cluster.workers * cluster.threads_per_worker,
    )
    reporter.begin("project", None, "iterations")
    if run.plan.blockwise is None:
        result = _projected_in_one_task(job, client, reporter)
    else:
        result = _projected_blockwise(job, run, run.plan.blockwise, client, reporter)
    reporter.end(iterations=result.iterations, rank=result.rank, converged=result.converged)
    return result


def _projected_in_one_task(job: ProjectJob, client: Client, reporter: Reporter) -> PostProcessing:
    patience = current_patience()

    def show(event: tuple[float, dict[str, Any]]) -> None:
        step = event[1]
        patience.hear()
        reporter.advance(step["number"], residual=step["residual"])

    client.subscribe_topic(PROGRESS_TOPIC, show)
    (summary,) = run_tasks(client, "project", project_task, job, [0])
    client.unsubscribe_topic(PROGRESS_TOPIC)
    return summary.post_processing


def _projected_blockwise(
    job: ProjectJob, run: Run, planned: BlockwisePlan, client: Client, reporter: Reporter
) -> PostProcessing:
    solving = Solving(reporter, job.method, planned.all_products)
    held = cache_bytes(run.plan, int(run.config.cluster.memory_limit))
    return project_blockwise(
        client, job, run.folder.solver, held, solving.iterated, solving.multiplied
    ).post_processing


def _disk_bytes(run: Run, stage: str) -> int:
    """Bytes that a stage leaves on disk, as planned."""
    return sum(planned.disk_bytes for planned in run.plan.stages if planned.name == stage)


def publish(run: Run, client: Client, reporter: Reporter) -> None:
    """Write the arrays of the release afresh, block by block."""
    counted = enumerate(
        _published_blocks(run, run.plan, client)
        if isinstance(run.plan, GramPlan)
        else _published_scores(run, run.plan, client),
        start=1,
    )
    reporter.begin("publish", run.plan.stages[-1].tasks, "blocks")
    done = 0
    for done, _ in counted:
        reporter.advance(done)
    _publish_ids(run, reporter)
    reporter.end(blocks=done, bytes=_disk_bytes(run, "publish"))


def _publish_ids(run: Run, reporter: Reporter) -> None:
    """Copy the ids that were declared public; they are small, so no worker is asked."""
    width = run.gallery.id_width
    if width is None:
        return
    prepare_ids(run.release, run.gallery.n, width, _ID_ROWS)
    for start, stop in panels(run.gallery.n, _ID_ROWS):
        publish_ids(run.release, start, stored_ids(run.gallery, start, stop))
    reporter.note("ids of the records are public", release=run.release_id, ids=run.gallery.n)


def _published_blocks(run: Run, plan: GramPlan, client: Client) -> Iterator[int]:
    projected = plan.projects
    job = PublishJob(
        directory=str(run.release),
        triangle=plan.triangle,
        arrays=run.config.arrays,
        projection=str(run.folder.projection) if projected else None,
        noisy=None if projected else str(run.folder.store),
    )
    prepare_release(job)
    if "factor" in job.arrays:
        panels = range(plan.triangle.per_side)
        yield from run_tasks(client, "publish-factor", publish_panel, job, panels)
    if "gram" in job.arrays:
        yield from run_tasks(client, "publish-gram", publish_block, job, range(plan.triangle.count))


def _published_scores(run: Run, plan: ScoresPlan, client: Client) -> Iterator[int]:
    score_range = run.mechanism.score_range
    job = PublishScoresJob(
        directory=str(run.release),
        rectangle=plan.rectangle,
        chunk_rows=plan.chunk_rows,
        noisy=str(run.folder.store),
        low=score_range.low,
        high=score_range.high,
    )
    prepare_scores(job)
    blocks_of_all = range(plan.rectangle.count)
    return run_tasks(client, "publish-scores", publish_scores, job, blocks_of_all)
