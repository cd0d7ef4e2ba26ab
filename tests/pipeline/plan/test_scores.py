"""The plan of a scores release: counts from sizes alone, and real workers held to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.ingest.queries import Queries, keep_queries, queries_digest
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.perturb.tasks import ScoresJob, perturb_scores
from pipeline.plan.geometry import Rectangle
from pipeline.plan.memory import FLOAT32_BYTES
from pipeline.plan.release import MIB, MOST_TASKS, check_fits
from pipeline.plan.scores import ScoresPlan, automatic_columns, chunk_rows, plan_scores
from pipeline.publish.scores import PublishScoresJob, prepare_scores, publish_scores
from pipeline.storage import blocks
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.noise.sampler import TILE
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency


def asked(m: int, d: int) -> Queries:
    rows = to_fixed(np.random.default_rng(1).normal(size=(m, d)))
    return Queries(rows, queries_digest(rows))


def planned(m: int, n: int, d: int = 8, side: int | None = None, threads: int = 1) -> ScoresPlan:
    queries = asked(m, d)
    mechanism = scores_mechanism(n, queries.rows, 8.0, 1e-6, Adjacency(), FULL_RANGE)
    return plan_scores(mechanism, m, side or "auto", threads)


@pytest.mark.parametrize(
    ("m", "n", "d", "rows", "columns"),
    [
        (1, 300, 8, 1, 300),
        (5, 8 * TILE, 8, 5, TILE),
        (64, 10**6, 128, 64, 16 * TILE),
        (5000, 10**6, 128, TILE, 8 * TILE),
        (64, 10**6, 2**15, 64, TILE),
    ],
)
def test_automatic_blocks(m: int, n: int, d: int, rows: int, columns: int) -> None:
    rectangle = Rectangle(m, n, min(m, TILE), min(automatic_columns(m, n, d), n))
    assert rectangle.shape == (rows, columns)


@given(m=st.integers(1, 20_000), n=st.integers(1, 10**9), d=st.integers(1, 2**15))
@settings(max_examples=200, deadline=None)
def test_automatic_blocks_are_whole_tiles_within_the_task_limit(m: int, n: int, d: int) -> None:
    columns = automatic_columns(m, n, d)
    assert columns % TILE == 0
    count = Rectangle(m, n, min(m, TILE), columns).count
    assert count <= MOST_TASKS or columns >= n


@given(m=st.integers(1, 10**5), n=st.integers(1, 10**9))
def test_a_block_holds_whole_chunks_and_a_row_of_them_fits(m: int, n: int) -> None:
    rows = chunk_rows(m, n)
    assert rows == m or TILE % rows == 0
    assert rows == 1 or rows * n * FLOAT32_BYTES <= 64 * MIB


def test_a_block_side_that_makes_too_many_tasks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"block_side: 16 cuts 3 x 200000 scores into 125"):
        planned(3, 200_000, side=16)


def test_the_figures_add_up_and_grow_with_threads() -> None:
    plan, wider = planned(64, 10**6, 128), planned(64, 10**6, 128, threads=2)
    assert [stage.name for stage in plan.stages] == ["perturb", "publish"]
    assert plan.tasks == 2 * plan.rectangle.count == 2 * 62
    assert plan.disk_bytes > 2 * 64 * 10**6 * FLOAT32_BYTES
    assert plan.peak_worker_bytes < wider.peak_worker_bytes < 2 * plan.peak_worker_bytes
    assert plan.projects is False


def test_too_small_a_disk_is_refused_with_a_way_out() -> None:
    plan = planned(64, 10**6)
    with pytest.raises(ConfigurationError, match="ask fewer queries"):
        check_fits(plan, 2**40, plan.disk_bytes - 1)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """One worker process that has computed nothing yet."""
    with open_cluster(Cluster(workers=1), tmp_path / "scratch") as connected:
        yield connected


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_workers_peak_is_as_planned_within_a_fifth(client: Client, tmp_path: Path) -> None:
    def high_water_mark() -> int:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

    m, n, d = 200, 40_000, 64
    np.save(tmp_path / "source.npy", np.random.default_rng(5).normal(size=(n, d)))
    gallery = ingest(tmp_path / "source.npy", tmp_path / "gallery.zarr")
    plan, queries = planned(m, n, d), asked(m, d)
    store, directory = tmp_path / "noisy.zarr", tmp_path / "release"
    (tmp_path / "receipts").mkdir()
    create_key(tmp_path / "key", content_digest(gallery), "peak", plan.mechanism)
    blocks.create_store(store, plan.rectangle)
    job = ScoresJob(
        gallery=gallery.path,
        queries=keep_queries(tmp_path, queries),
        queries_sha256=queries.sha256,
        store=store,
        receipts=tmp_path / "receipts",
        key_file=tmp_path / "key",
        key_commitment=commitment(tmp_path / "key"),
        release_id="peak",
        mechanism=plan.mechanism,
        geometry=plan.rectangle,
    )
    indices = range(plan.rectangle.count)
    assert len(list(run_tasks(client, "perturb", perturb_scores, job, indices))) == 2
    perturb, publish = plan.stages
    (peak,) = client.run(high_water_mark).values()
    assert 0.8 * perturb.peak_worker_bytes <= peak <= 1.2 * perturb.peak_worker_bytes
    publishing = PublishScoresJob(directory, plan.rectangle, plan.chunk_rows, store, -1.0, 1.0)
    prepare_scores(publishing)
    list(run_tasks(client, "publish", publish_scores, publishing, indices))
    (peak,) = client.run(high_water_mark).values()
    assert peak <= 1.2 * max(perturb.peak_worker_bytes, publish.peak_worker_bytes)
    for stage, folder in ((perturb, store), (publish, directory)):
        stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        assert 0.9 * stage.disk_bytes <= stored <= stage.disk_bytes
