"""The plan: counts and bounds from sizes alone, and real workers held to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cluster import open_cluster
from pipeline.cluster.window import run_tasks
from pipeline.config.cluster import Cluster
from pipeline.errors import ConfigurationError, ParameterError
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.perturb.keyfile import commitment, create_key
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import automatic_block_side, plan_release
from pipeline.plan.release import MIB, MOST_TASKS, USABLE_SHARE, ReleasePlan, check_fits
from pipeline.quantities import show_bytes
from pipeline.storage import blocks
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import choose_encoding
from scoreshield.noise.sampler import TILE
from scoreshield.projection import METHODS


def planned(
    n: int = 5000,
    d: int = 64,
    method: str = "nearest",
    arrays: tuple[str, ...] = ("factor", "gram"),
    side: int | None = None,
    threads: int = 1,
) -> ReleasePlan:
    """A plan in the dense form; the blockwise one has tests of its own."""
    mechanism = calibrate_gram(n, d, 1.0, 1e-6)
    return plan_release(mechanism, method, arrays, side or "auto", threads, form="dense")


@given(n=st.integers(1, 10**7), side=st.integers(16, 16384), data=st.data())
def test_packing_is_a_bijection_at_any_size(n: int, side: int, data: st.DataObject) -> None:
    triangle = Triangle(n, side)
    per_side = -(-n // side)
    assert triangle.count == per_side * (per_side + 1) // 2
    index = data.draw(st.integers(0, triangle.count - 1))
    i, j = triangle.position(index)
    assert 0 <= i <= j < per_side
    assert triangle.index(i, j) == index
    assert type(i) is int
    assert type(j) is int


@given(j=st.integers(0, 10**7))
def test_packing_is_right_at_the_ends_of_every_column(j: int) -> None:
    # Where a square root in floating point would be off by one.
    triangle = Triangle(10**7 * 16 + 16, 16)
    first = j * (j + 1) // 2
    assert triangle.position(first) == (0, j)
    assert triangle.position(first + j) == (j, j)
    assert triangle.index(j, j) == first + j


def test_spans_cover_every_row_once() -> None:
    for n in (1, 15, 16, 17, 50):
        triangle = Triangle(n, 16)
        covered = [row for i in range(triangle.per_side) for row in range(n)[triangle.span(i)]]
        assert covered == list(range(n))


@pytest.mark.parametrize("index", [-1, 10])
def test_there_is_no_block_outside_the_triangle(index: int) -> None:
    triangle = Triangle(50, 16)
    with pytest.raises(IndexError, match="among 10"):
        triangle.position(index)
    with pytest.raises(IndexError, match="no block"):
        triangle.index(3, 2)


@pytest.mark.parametrize(
    ("n", "side"),
    [
        (2, 1024),
        (1797, 1024),
        (8192, 1024),
        (8193, 2048),
        (100_000, 2048),
        (280_000, 2048),
        (300_000, 3072),
        (10**7, 71_680),
    ],
)
def test_automatic_block_side(n: int, side: int) -> None:
    assert automatic_block_side(n) == side
    assert side % TILE == 0
    assert Triangle(n, side).count <= MOST_TASKS


@given(n=st.integers(2, 10**8))
def test_the_automatic_side_is_the_smallest_that_keeps_the_task_limit(n: int) -> None:
    side = automatic_block_side(n)
    assert Triangle(n, side).count <= MOST_TASKS
    assert side <= 2 * TILE or Triangle(n, side - TILE).count > MOST_TASKS


def test_too_many_blocks_are_refused_with_the_side_that_works() -> None:
    with pytest.raises(ConfigurationError, match=r"block_side: 16 cuts 5000.*49141.*at least 1024"):
        planned(side=16)


def test_tasks_are_those_that_run() -> None:
    plan = planned(n=5000, side=1024)
    assert [(stage.name, stage.tasks) for stage in plan.stages] == [
        ("perturb", 15),
        ("project", 1),
        ("publish", 5 + 15),
    ]
    assert plan.tasks == 36
    assert planned(side=1024, arrays=("factor",)).stages[-1].tasks == 5
    unprojected = planned(side=1024, method="none", arrays=("gram",))
    assert [(stage.name, stage.tasks) for stage in unprojected.stages] == [
        ("perturb", 15),
        ("publish", 15),
    ]


def test_totals_are_the_largest_memory_and_the_sum_of_disk() -> None:
    plan = planned()
    assert plan.peak_worker_bytes == max(stage.peak_worker_bytes for stage in plan.stages)
    assert plan.disk_bytes == sum(stage.disk_bytes for stage in plan.stages)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"none"}))
def test_the_projection_is_planned_by_its_own_figure(method: str) -> None:
    small, large = planned(n=2000, method=method), planned(n=4000, method=method)
    assert large.stages[1].peak_worker_bytes - small.stages[1].peak_worker_bytes == METHODS[
        method
    ].memory_bytes(4000) - METHODS[method].memory_bytes(2000)


@given(
    n=st.integers(2, 10**6),
    d=st.integers(1, 4096),
    threads=st.integers(1, 8),
    side=st.sampled_from([1024, 2048, 4096]),
)
def test_more_of_anything_never_needs_less(n: int, d: int, threads: int, side: int) -> None:
    # Ten million records in small blocks would be refused for their number, not their size.
    side = max(side, automatic_block_side(n))
    mechanism = calibrate_gram(n, d, 1.0, 1e-6)
    plan = plan_release(mechanism, "aap", ("factor", "gram"), side, threads, form="dense")
    wider = plan_release(mechanism, "aap", ("factor", "gram"), side, threads + 1, form="dense")
    deeper = plan_release(
        replace(mechanism, d=d + 1), "aap", ("gram",), side, threads, form="dense"
    )
    for stage, more in zip(plan.stages, wider.stages, strict=True):
        assert more.peak_worker_bytes >= stage.peak_worker_bytes > 0
        assert more.disk_bytes == stage.disk_bytes > 0
    assert deeper.stages[0].peak_worker_bytes >= plan.stages[0].peak_worker_bytes


def test_memory_is_refused_with_the_limit_that_would_do() -> None:
    plan = planned(n=8192)
    stage = plan.stages[1]
    needed = int(stage.peak_worker_bytes / USABLE_SHARE) + 1
    check_fits(plan, needed, 10**15)
    with pytest.raises(ConfigurationError) as caught:
        check_fits(plan, needed - 2 * MIB, 10**15)
    said = str(caught.value)
    assert "stage project needs" in said
    assert show_bytes(stage.peak_worker_bytes) in said
    assert f"raise the limit to {show_bytes(needed)}" in said
    assert "Nothing was spent" in said


def test_a_stage_of_blocks_is_refused_with_a_smaller_side() -> None:
    plan = planned(n=50_000, d=4, side=8192, threads=4, method="none", arrays=("gram",))
    with pytest.raises(ConfigurationError, match="a smaller block_side than 8192 or fewer threads"):
        check_fits(plan, 1024 * MIB, 10**15)


def test_disk_is_refused_with_both_numbers() -> None:
    plan = planned()
    check_fits(plan, 2**40, plan.disk_bytes)
    with pytest.raises(ConfigurationError, match="of disk") as caught:
        check_fits(plan, 2**40, plan.disk_bytes - 1)
    assert show_bytes(plan.disk_bytes) in str(caught.value)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_for_people(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


@pytest.fixture(params=["float32", "int8"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> PerturbJob:
    """Three blocks of two tiles a side."""
    n, d, side = 4096, 128, 2048
    np.save(tmp_path / "source.npy", np.random.default_rng(5).normal(size=(n, d)))
    gallery = ingest(tmp_path / "source.npy", tmp_path / "gallery.zarr")
    mechanism, triangle = calibrate_gram(n, d, 1.0, 1e-6), Triangle(n, side)
    (tmp_path / "receipts").mkdir()
    create_key(tmp_path / "key", content_digest(gallery), "peak", mechanism)
    encoding = choose_encoding(mechanism.sigma, request.param)
    blocks.create_store(tmp_path / "noisy.zarr", triangle, encoding)
    return PerturbJob(
        gallery=gallery.path,
        store=tmp_path / "noisy.zarr",
        receipts=tmp_path / "receipts",
        key_file=tmp_path / "key",
        key_commitment=commitment(tmp_path / "key"),
        release_id="peak",
        mechanism=mechanism,
        geometry=triangle,
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """One worker process that has computed nothing yet."""
    with open_cluster(Cluster(workers=1), tmp_path / "scratch") as connected:
        yield connected


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_workers_peak_is_as_planned_within_a_fifth(client: Client, job: PerturbJob) -> None:
    def high_water_mark() -> int:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

    precision = blocks.encoding_of(job.store).dtype
    side = job.geometry.side
    plan = plan_release(job.mechanism, "none", ("gram",), side, 1, precision=precision)
    receipts = list(run_tasks(client, "perturb", perturb_block, job, range(job.geometry.count)))
    assert len(receipts) == 3
    (peak,) = client.run(high_water_mark).values()
    assert 0.8 * plan.stages[0].peak_worker_bytes <= peak <= 1.2 * plan.stages[0].peak_worker_bytes
    stored = sum(file.stat().st_size for file in job.store.rglob("*") if file.is_file())
    # Little beside a block of float32; a block of codes is smaller.
    assert 0.9 * plan.stages[0].disk_bytes <= stored <= plan.stages[0].disk_bytes


def test_codes_take_a_quarter_of_the_disk_and_of_a_product() -> None:
    mechanism = calibrate_gram(100_000, 128, 8.0, 1e-6)
    plans = {
        precision: plan_release(
            mechanism, "nearest", ("factor",), "auto", 1, workers=2, precision=precision
        )
        for precision in ("auto", "float32", "int16")
    }
    assert plans["auto"].encoding.dtype == "int8"
    read = {name: plan.blockwise.bytes_a_product for name, plan in plans.items() if plan.blockwise}
    assert read["float32"] == 2 * read["int16"] == 4 * read["auto"]
    assert 5e9 < read["auto"] < 5.3e9
    saved = plans["float32"].stages[0].disk_bytes - plans["auto"].stages[0].disk_bytes
    assert saved == read["float32"] - read["auto"]
    for name, plan in plans.items():
        for stage, coarse in zip(plan.stages, plans["auto"].stages, strict=True):
            assert stage.peak_worker_bytes >= coarse.peak_worker_bytes, name


def test_what_is_published_as_it_is_stored_is_not_rounded_unasked() -> None:
    mechanism = calibrate_gram(1000, 8, 1.0, 1e-6)
    assert plan_release(mechanism, "none", ("gram",), "auto", 1).encoding.dtype == "float32"
    asked = plan_release(mechanism, "none", ("gram",), "auto", 1, precision="int8")
    assert asked.encoding.dtype == "int8"


def test_a_precision_too_coarse_for_the_noise_is_refused() -> None:
    quiet = replace(calibrate_gram(1000, 8, 1.0, 1e-6), sigma=0.1)
    with pytest.raises(ParameterError, match=r"precision: int8 .* takes int16"):
        plan_release(quiet, "nearest", ("gram",), "auto", 1, precision="int8")
