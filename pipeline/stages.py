"""The stages of a run on a cluster: each cut into tasks, each repeatable after a crash."""

from __future__ import annotations

from typing import Any

from distributed import Client

from pipeline import blocks
from pipeline.perturb import PerturbJob, perturb_block
from pipeline.progress import Reporter
from pipeline.project import PROGRESS_TOPIC, ProjectJob, project_task, unprojected
from pipeline.publish import PublishJob, prepare_release, publish_block, publish_panel
from pipeline.run import Run
from pipeline.window import run_tasks
from scoreshield.manifest import NoisyRecord, PostProcessing


def perturb(run: Run, client: Client, reporter: Reporter) -> NoisyRecord:
    """Make every noisy block that has no intact receipt yet.

    Raises
    ------
    IntegrityFailure
        The gallery, the key or the block store is not what it was.
    RunFailed
        A task failed; finished blocks are kept.
    """
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


def project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    """Project the noisy matrix in one task, or take a projection that is finished."""
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


def publish(run: Run, client: Client, reporter: Reporter) -> None:
    """Write the arrays of the release afresh, block by block."""
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
