"""Regime ``scores``: those of m public queries with the n records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.config.model import Config
from pipeline.gallery.store import is_gallery
from pipeline.ingest.queries import Queries, keep_queries, load_queries
from pipeline.perturb.tasks import ScoresJob, perturb_scores
from pipeline.plan.memory import PanelMemory
from pipeline.plan.scores import ScoresPlan, plan_scores
from pipeline.progress import Reporter
from pipeline.publish.scores import PublishScoresJob, prepare_scores, publish_scores
from pipeline.run.run import Run, RunRegime, Task
from scoreshield.errors import InputRejected
from scoreshield.manifest.build import describe_clipped_scores
from scoreshield.manifest.schema import PostProcessing
from scoreshield.mechanisms.scores import scores_mechanism


def read_queries(config: Config, features: Callable[[], int]) -> Queries:
    """The queries of a configuration for records of as many features.

    Raises
    ------
    InputRejected
        They can't be read or used, or lie in a gallery, which is private.
    """
    asked = cast(Path, config.queries)
    if is_gallery(asked) or is_gallery(asked.parent):
        raise InputRejected(
            f"queries {asked}: found a gallery, and galleries are private; expected public "
            "embeddings, in a file that was never ingested"
        )
    return load_queries(asked, config.queries_key, features())


def _plan(
    config: Config, n: int, d: int, queries: Queries | None, panels: PanelMemory | None
) -> ScoresPlan:
    privacy, rows = config.privacy, cast(Queries, queries).rows
    mechanism = scores_mechanism(
        n,
        rows,
        privacy.epsilon,
        privacy.delta,
        privacy.to_adjacency(),
        privacy.to_score_range(),
    )
    threads = config.cluster.threads_per_worker
    return plan_scores(mechanism, len(rows), config.block_side, threads, panels)


def _settings(config: Config, queries: Queries | None) -> dict[str, Any]:
    return {"queries_sha256": cast(Queries, queries).sha256}


def _bound_content(gallery_digest: bytes, queries: Queries | None) -> bytes:
    return hashlib.sha256(gallery_digest + bytes.fromhex(cast(Queries, queries).sha256)).digest()


def _perturb(run: Run, common: dict[str, Any]) -> tuple[Task, ScoresJob]:
    queries = cast(Queries, run.queries)
    kept = keep_queries(run.folder.path, queries)
    return perturb_scores, ScoresJob(**common, queries=kept, queries_sha256=queries.sha256)


def _project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    """Clipping, which publication does, is the projection of scores."""
    return describe_clipped_scores(run.mechanism)


def _publish(run: Run, client: Client) -> Iterator[int]:
    plan, score_range = cast(ScoresPlan, run.plan), run.mechanism.score_range
    job = PublishScoresJob(
        directory=run.release,
        rectangle=plan.rectangle,
        chunk_rows=plan.chunk_rows,
        noisy=run.folder.store,
        low=score_range.low,
        high=score_range.high,
    )
    prepare_scores(job)
    return run_tasks(client, "publish-scores", publish_scores, job, range(plan.rectangle.count))


SCORES = RunRegime(
    name="scores",
    queries=read_queries,
    plan=_plan,
    settings=_settings,
    bound_content=_bound_content,
    perturb=_perturb,
    project=_project,
    publish=_publish,
)
