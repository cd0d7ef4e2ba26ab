"""The perturb stage of a scores release against the same blocks without privacy rules.

The plain side computes the same blockwise inner products (float64, the same queries, records and
blocks) and adds NumPy normals. It neither checks records nor rounds, draws from a seeded generator,
and keeps no receipts. Both sides read the same gallery and write float32 blocks with a checksum to
Zarr, and each run gets a fresh local cluster of worker processes with one thread and one BLAS
thread each. Repetitions alternate between them, so that a busy machine slows both, and medians are
reported. Compare ratios between machines, not seconds.

    python benchmarks/scores.py
    python benchmarks/scores.py --n 200000 --m 16 --json
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from command_line import JSON, parser
from numpy.typing import NDArray
from stage import (
    DELTA,
    EPSILON,
    OPTIONS,
    Measurement,
    all_blocks,
    job_fields,
    report,
    require_disk,
    scratch,
)

from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.store import panels
from pipeline.ingest.queries import Queries, keep_queries, kept_queries, queries_digest
from pipeline.perturb.tasks import ScoresJob, perturb_scores
from pipeline.plan.geometry import Geometry
from pipeline.plan.scores import ScoresPlan, plan_scores
from pipeline.storage.blocks import create_store
from pipeline.storage.layout import EMBEDDINGS
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency

_ROWS = 8192


@dataclass(frozen=True)
class PlainJob:
    """What the plain side's tasks have in common."""

    gallery: Path
    queries: Path
    queries_sha256: str
    store: Path
    geometry: Geometry
    sigma: float


def main() -> None:
    arguments = parser(
        __doc__,
        n=(1_000_000, "records"),
        d=(128, "features"),
        m=(64, "queries"),
        **OPTIONS,
        json=JSON,
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="scores-benchmark-") as folder:
        place = Path(folder)
        require_disk(place, 4 * arguments.n * (arguments.d + arguments.m))
        plan = make_inputs(place, arguments)
        sides: dict[str, list[Measurement]] = {"perturb": [], "plain": []}
        for _ in range(arguments.repeat):
            sides["perturb"].append(perturb_stage(place, plan, arguments.workers))
            sides["plain"].append(plain_blocks(place, plan, arguments.workers))
    facts = {name: getattr(arguments, name) for name in ("n", "d", "m")}
    facts["block"] = plan.geometry.shape
    report(arguments, plan, facts, sides, compared=("perturb", "plain"))


def make_inputs(place: Path, arguments: argparse.Namespace) -> ScoresPlan:
    """A gallery of random unit rows from a fixed seed, and the plan of its scores."""
    generator = np.random.default_rng(0)
    gallery = create_embeddings(place / "gallery.zarr", arguments.n, arguments.d)
    for start, stop in panels(arguments.n, _ROWS):
        gallery[start:stop] = to_fixed(generator.standard_normal((stop - start, arguments.d)))
    rows = to_fixed(generator.standard_normal((arguments.m, arguments.d)))
    queries = Queries(rows, queries_digest(rows))
    keep_queries(place, queries)
    mechanism = scores_mechanism(arguments.n, rows, EPSILON, DELTA, Adjacency(), FULL_RANGE)
    return plan_scores(mechanism, len(rows), "auto", threads_per_worker=1)


def asked(place: Path) -> dict[str, Any]:
    """The gallery and the queries, as the jobs of both sides name them."""
    queries = place / "queries.npy"
    return {
        "gallery": place / "gallery.zarr",
        "queries": queries,
        "queries_sha256": queries_digest(np.load(queries)),
    }


def perturb_stage(place: Path, plan: ScoresPlan, workers: int) -> Measurement:
    """Our side: the perturb stage as a release runs it, with a fresh key and receipts."""
    with scratch(place / "ours") as folder:
        job = ScoresJob(**asked(place), **job_fields(folder, plan))
        create_store(job.store, plan.geometry)
        return all_blocks(folder, workers, perturb_scores, job)


def plain_blocks(place: Path, plan: ScoresPlan, workers: int) -> Measurement:
    """The other side, block by block through the same window of tasks."""
    with scratch(place / "plain") as folder:
        store, sigma = folder / "noisy.zarr", plan.mechanism.sigma
        job = PlainJob(**asked(place), store=store, geometry=plan.geometry, sigma=sigma)
        create_store(store, plan.geometry)
        return all_blocks(folder, workers, plain_block, job)


def plain_block(job: PlainJob, index: int) -> int:
    """Inner products, NumPy normals, one chunk."""
    rows, columns = job.geometry.region(index)
    queries = kept_queries(job.queries, job.queries_sha256)[rows].astype(np.float64)
    records: NDArray[Any] = zarr.open_group(job.gallery, mode="r")[EMBEDDINGS][columns]
    scores = queries @ records.astype(np.float64).T
    scores += job.sigma * np.random.default_rng(index).standard_normal(scores.shape)
    padded = np.zeros(job.geometry.shape, dtype=np.float32)
    padded[: scores.shape[0], : scores.shape[1]] = scores
    zarr.open_group(job.store, mode="r+")["blocks"][index] = padded
    return index


if __name__ == "__main__":
    main()
