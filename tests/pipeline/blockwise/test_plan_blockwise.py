"""The plan of a blockwise projection, and real products held to it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.plan.blockwise import panel_width
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import GramPlan, plan_release
from pipeline.plan.release import USABLE_SHARE, WORKER_BASELINE, cache_bytes, check_fits
from pipeline.project.operator import ClusterOperator, NoisyBlocks
from pipeline.project.panel_file import row_ranges
from pipeline.project.panel_store import ClusterPanels
from scoreshield.mechanisms.gaussian import calibrate_gram
from scoreshield.projection.choose import LARGEST_DENSE
from tests.harness.small_release import write_noisy

GIB = 2**30


def planned(n: int, method: str = "nearest", form: Any = "auto", **settings: Any) -> GramPlan:
    mechanism = calibrate_gram(n, 128, 8.0, 1e-6)
    return plan_release(mechanism, method, ("factor",), "auto", 1, workers=2, form=form, **settings)


def project_stage(plan: GramPlan) -> Any:
    return next(stage for stage in plan.stages if stage.name == "project")


@pytest.mark.parametrize(
    ("n", "form", "blockwise"),
    [
        (LARGEST_DENSE, "auto", False),
        (LARGEST_DENSE + 1, "auto", True),
        (LARGEST_DENSE + 1, "dense", False),
        (100, "blockwise", True),
    ],
)
def test_the_form(n: int, form: str, blockwise: bool) -> None:
    plan = planned(n, form=form)
    assert (plan.blockwise is not None) == blockwise
    assert (project_stage(plan).tasks == 1) != blockwise


def test_method_none_has_no_form() -> None:
    plan = plan_release(calibrate_gram(9000, 8, 1.0, 1e-6), "none", ("gram",), "auto", 1)
    assert plan.blockwise is None
    assert not plan.projects


@pytest.mark.parametrize("method", ["aap", "auto", "nearest", "shrink"])
def test_a_hundred_thousand_records_fit_two_small_workers(method: str) -> None:
    plan = planned(100_000, method)
    check_fits(plan, 6 * GIB, 2**50)
    # Where the dense form would need 80 GB for one copy of the matrix.
    assert project_stage(plan).peak_worker_bytes < 3 * GIB
    with pytest.raises(ConfigurationError, match="form: blockwise"):
        check_fits(planned(100_000, method, form="dense"), 6 * GIB, 2**50)


def test_what_a_task_needs_and_the_cache_share_the_memory() -> None:
    plan = planned(20_000)
    held = cache_bytes(plan, 4 * GIB)
    assert held + project_stage(plan).peak_worker_bytes == int(USABLE_SHARE * 4 * GIB)
    assert cache_bytes(plan, 2**20) == 0


@given(n=st.integers(2, 10**6), sigma=st.floats(1e-3, 1e3))
def test_widths_grow_with_the_matrix_and_never_beyond_it(n: int, sigma: float) -> None:
    mechanism = replace(calibrate_gram(n, 64, 1.0, 1e-6), sigma=sigma)
    for method in ("aap", "auto", "nearest", "shrink"):
        width = panel_width(mechanism, method)
        assert 1 <= width <= n
        louder = panel_width(replace(mechanism, sigma=2 * sigma), method)
        assert louder <= width


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_workers_stay_within_the_plan(client: Client, tmp_path: Path) -> None:
    # Defined here, so that it travels by value: workers can't import the tests.
    def resident_peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    n, side = 2500, 512
    triangle = Triangle(n, side)
    random = np.random.default_rng(5)
    noisy = random.normal(size=(n, n)).astype(np.float32)
    path = write_noisy(tmp_path / "noisy.zarr", noisy, triangle)
    mechanism = calibrate_gram(n, 128, 8.0, 1e-6)
    plan = plan_release(mechanism, "nearest", ("factor",), side, 1, workers=2, form="blockwise")
    assert plan.blockwise is not None
    algebra = ClusterPanels(client, tmp_path, row_ranges(n, 2), 2)
    held = 4 * 2**20
    operator = ClusterOperator(algebra, NoisyBlocks(path, triangle, held), triangle)
    client.restart()
    product = operator.matmat(algebra.start(plan.blockwise.width))
    algebra.inner(product, product)
    peaks = client.run(resident_peak).values()
    assert max(peaks) <= project_stage(plan).peak_worker_bytes + held
    assert project_stage(plan).peak_worker_bytes > WORKER_BASELINE
