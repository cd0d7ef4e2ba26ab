"""Regime ``gram``: the similarities of the records with one another, n × n."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from distributed import Client

from pipeline.cluster.patience import current_patience
from pipeline.cluster.window import run_tasks
from pipeline.config.model import Config
from pipeline.errors import ConfigurationError
from pipeline.ingest.queries import Queries
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.gram import GramPlan, plan_release
from pipeline.plan.memory import PanelMemory
from pipeline.plan.release import cache_bytes
from pipeline.progress import Reporter
from pipeline.project.blockwise import project_blockwise
from pipeline.project.dense import PROGRESS_TOPIC, ProjectJob, project_task, unprojected
from pipeline.project.solver_reporter import SolverReporter
from pipeline.publish.gram import PublishJob, prepare_release, publish_block, publish_panel
from pipeline.run.run import Run, RunRegime, Task
from scoreshield.manifest.schema import PostProcessing
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram


def no_queries(config: Config, features: Callable[[], int]) -> None:
    """Records are compared with one another."""


def gram_mechanism(config: Config, n: int, d: int) -> Mechanism:
    """The mechanism a configuration asks for on a gallery of n records of d features."""
    privacy = config.privacy
    return calibrate_gram(
        n, d, privacy.epsilon, privacy.delta, privacy.to_adjacency(), privacy.to_score_range()
    )


def plan_gram(
    config: Config, n: int, d: int, queries: Queries | None, panels: PanelMemory | None
) -> GramPlan:
    """The plan of a configuration."""
    plan = plan_release(
        gram_mechanism(config, n, d),
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
    if plan.blockwise is not None and rank != "auto" and not plan.blockwise.takes_rank:
        raise ConfigurationError(
            f"projection.rank is {rank}, but the blockwise form of method {method!r}, which "
            f"{plan.triangle.n} records take, finds its own rank; leave rank out, or use method "
            "'aap' for a truncated step"
        )


def _planned(run: Run) -> GramPlan:
    return cast(GramPlan, run.plan)


def _settings(config: Config, queries: Queries | None) -> dict[str, Any]:
    return {
        "projection": config.projection.model_dump(mode="json"),
        "precision": config.precision,
    }


def _bound_content(gallery_digest: bytes, queries: Queries | None) -> bytes:
    return gallery_digest


def _perturb(run: Run, common: dict[str, Any]) -> tuple[Task, PerturbJob]:
    return perturb_block, PerturbJob(**common)


def _project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    """In one task, blockwise on all workers, or not at all; a finished projection is taken."""
    if not run.plan.projects:
        return unprojected(run.gallery.n)
    settings, cluster = run.config.projection, run.config.cluster
    job = ProjectJob(
        noisy=run.folder.store,
        triangle=_planned(run).triangle,
        sigma=run.mechanism.sigma,
        method=settings.method,
        tolerance=settings.tolerance,
        max_iterations=settings.max_iterations,
        rank=settings.rank,
        target=run.folder.projection,
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
    told = SolverReporter(reporter, job.method, planned.all_products)
    held = cache_bytes(run.plan, int(run.config.cluster.memory_limit))
    return project_blockwise(
        client, job, run.folder.solver, held, told.iterated, told.multiplied
    ).post_processing


def _publish(run: Run, client: Client) -> Iterator[int]:
    triangle, projected = _planned(run).triangle, run.plan.projects
    job = PublishJob(
        directory=run.release,
        triangle=triangle,
        arrays=run.config.arrays,
        projection=run.folder.projection if projected else None,
        noisy=None if projected else run.folder.store,
    )
    prepare_release(job)
    if "factor" in job.arrays:
        panels = range(triangle.per_side)
        yield from run_tasks(client, "publish-factor", publish_panel, job, panels)
    if "gram" in job.arrays:
        yield from run_tasks(client, "publish-gram", publish_block, job, range(triangle.count))


GRAM = RunRegime(
    name="gram",
    queries=no_queries,
    plan=plan_gram,
    settings=_settings,
    bound_content=_bound_content,
    perturb=_perturb,
    project=_project,
    publish=_publish,
)
