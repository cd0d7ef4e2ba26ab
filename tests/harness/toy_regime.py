"""A regime that the product does not have: the similarity of each record with the next one.

n − 1 values, of which a replaced record changes two by at most 2 each, so Δ = 2√2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.config.model import Config
from pipeline.gallery.dense import read_rows
from pipeline.ingest.queries import Queries
from pipeline.perturb.keyfile import read_committed_key
from pipeline.perturb.tasks import PerturbJob
from pipeline.plan.geometry import Rectangle
from pipeline.plan.memory import PanelMemory
from pipeline.plan.rates import Machines, Rates, StageTime
from pipeline.plan.release import WORKER_BASELINE, ReleasePlan, StagePlan
from pipeline.progress import Reporter
from pipeline.publish.gram import start_release, store_of
from pipeline.run.gram import no_queries
from pipeline.run.run import Run, RunRegime, Task
from pipeline.storage import arrays
from pipeline.storage.blocks import Receipt, read_block, save_receipt, write_block
from scoreshield.arithmetic.fixedpoint import to_integers
from scoreshield.manifest.build import describe_clipped_scores
from scoreshield.manifest.schema import PostProcessing
from scoreshield.mechanisms.gaussian import Mechanism, calibrated_mechanism, round_to_grid
from scoreshield.noise import sampler
from scoreshield.noise.encoding import FLOAT32
from scoreshield.privacy.sensitivity import Adjacency, Sensitivity
from scoreshield.regimes.record import UNPROTECTED, Regime
from scoreshield.utility.forecast import ScoresForecast

NAME = "chain"
SIDE = sampler.TILE


def _sensitivity(adjacency: Adjacency, rounding: float) -> Sensitivity:
    return Sensitivity(2 * math.sqrt(2) + rounding * math.sqrt(2), "two neighbours")


@dataclass(frozen=True)
class ChainPlan(ReleasePlan):
    """One block a tile of the row."""

    @property
    def geometry(self) -> Rectangle:
        n = self.mechanism.n - 1
        return Rectangle(1, n, 1, min(SIDE, n))

    @property
    def less(self) -> str:
        return "release fewer records"

    @property
    def heading(self) -> str:
        return f"chain of {self.records}"

    @property
    def noise_samples(self) -> int:
        return self.mechanism.n - 1

    @property
    def panel_rows(self) -> int:
        return SIDE + 1

    def time_after_perturb(self, rates: Rates, machines: Machines) -> tuple[StageTime, ...]:
        return (StageTime("publish", rates.task_seconds),)


def plan(
    config: Config, n: int, d: int, queries: Queries | None, panels: PanelMemory | None
) -> ChainPlan:
    privacy = config.privacy
    mechanism = calibrated_mechanism(
        NAME, n, d, None, privacy.epsilon, privacy.delta, None, privacy.to_score_range(),
        _sensitivity,
    )  # fmt: skip
    tasks = -(-(n - 1) // SIDE)
    stages = tuple(
        StagePlan(name, tasks, WORKER_BASELINE + 2**22, 2**20) for name in ("perturb", "publish")
    )
    return ChainPlan(mechanism, "clip", stages, FLOAT32, _forecast(mechanism))


def chain_block(job: PerturbJob, index: int) -> Receipt:
    """The perturb task."""
    columns = job.geometry.region(index)[1]
    integers = to_integers(read_rows(job.gallery, columns.start, columns.stop + 1))
    values = np.einsum("ij,ij->i", integers[:-1], integers[1:])[None]
    round_to_grid(values, job.mechanism)
    release_key = read_committed_key(job.key_file, job.key_commitment)
    key = sampler.tile_key(release_key, job.release_id, NAME, 0, index)
    sampler.add_row_noise(values[0], [key], job.mechanism.ratio, 0, 0)
    noisy = (values * job.mechanism.grid).astype(np.float32)
    receipt = write_block(job.store, job.geometry, index, noisy)
    save_receipt(job.receipts, receipt)
    return receipt


def perturb(run: Run, common: dict[str, Any]) -> tuple[Task, PerturbJob]:
    return chain_block, PerturbJob(**common)


def project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    return describe_clipped_scores(run.mechanism)


def chain_published(run: tuple[Any, Any, Rectangle], index: int) -> int:
    """The publication task."""
    store, noisy, geometry = run
    chain = arrays.open_for_writing(store, NAME)
    chain[geometry.region(index)] = np.clip(read_block(noisy, geometry, index), -1.0, 1.0)
    return index


def publish(run: Run, client: Client) -> Iterator[int]:
    geometry = run.plan.geometry
    start_release(run.release)
    store = store_of(run.release)
    arrays.create_array(store, NAME, (1, run.gallery.n - 1), geometry.shape)
    job = (store, run.folder.store, geometry)
    return run_tasks(client, "publish-chain", chain_published, job, range(geometry.count))


def _forecast(mechanism: Mechanism) -> ScoresForecast:
    return ScoresForecast(mechanism.sigma, mechanism.sigma, 1.0, 0.1, 0.1, 1.0)


WHAT = Regime(
    name=NAME,
    arrays=(NAME,),
    published="[chain]",
    asks_queries=False,
    projected=False,
    audited=False,
    states_forecast=False,
    noise="one draw a pair of neighbours",
    unprotected=UNPROTECTED,
    reading=("release.rows(0, 1)",),
    forecast=_forecast,
    holds=lambda mechanism: f"the similarities of {mechanism.n} records with their next",
    shapes=lambda n, m, columns: {NAME: (1, n - 1)},
    sensitivity_bounds=lambda _, adjacency, rounding: (
        _sensitivity(adjacency, rounding).value,
        _sensitivity(adjacency, rounding).value,
    ),
)
HOW = RunRegime(
    name=NAME,
    queries=no_queries,
    plan=plan,
    settings=lambda config, queries: {},
    bound_content=lambda gallery_digest, queries: gallery_digest,
    perturb=perturb,
    project=project,
    publish=publish,
)
