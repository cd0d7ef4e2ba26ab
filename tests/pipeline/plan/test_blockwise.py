"""The plan of a blockwise projection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.plan.gram import GramPlan, plan_release
from pipeline.plan.release import USABLE_SHARE, cache_bytes, check_fits
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.projection import METHODS
from scoreshield.projection.registry import LARGEST_DENSE

GIB = 2**30
BLOCKWISE = [name for name, method in METHODS.items() if method.blockwise is not None]


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


@pytest.mark.parametrize("method", BLOCKWISE)
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
    calm = replace(calibrate_gram(n, 64, 1.0, 1e-6), sigma=sigma)
    for method in BLOCKWISE:
        width, louder = (
            plan_release(mechanism, method, (), "auto", 1, form="blockwise").blockwise.width
            for mechanism in (calm, replace(calm, sigma=2 * sigma))
        )
        assert 1 <= louder <= width <= n
