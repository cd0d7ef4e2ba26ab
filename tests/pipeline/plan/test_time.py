"""Forecasts of time: pure sums of planned amounts over measured rates."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from pipeline.plan.gram import GramPlan, plan_release
from pipeline.plan.rates import Machines, Rates
from pipeline.plan.release import forecast_time
from pipeline.plan.time import bytes_read_from_storage, uneven
from scoreshield.mechanisms.gram import calibrate_gram

ENDLESS = Rates(**dict.fromkeys((field.name for field in fields(Rates)), 1e30))
COSTS = {"task_seconds", "round_seconds", "round_task_seconds", "start_seconds"}
FREE = replace(ENDLESS, **dict.fromkeys(COSTS, 0.0))
"""Rates at which everything takes no time, to be replaced one by one."""
TWO = Machines(workers=2, threads_per_worker=1, cache_bytes=2**62)


def planned(n: int = 20_000, method: str = "shrink", workers: int = 2, **settings: Any) -> GramPlan:
    mechanism = calibrate_gram(n, 128, 200.0, 1e-6)
    arrays = settings.pop("arrays", ("factor", "gram"))
    return plan_release(mechanism, method, arrays, "auto", 1, workers=workers, **settings)


def seconds(plan: GramPlan, rates: Rates, machines: Machines = TWO) -> dict[str, float]:
    return {stage.name: stage.seconds for stage in forecast_time(plan, rates, machines)}


def test_the_stages_are_those_of_the_release() -> None:
    assert list(seconds(planned(), FREE)) == ["start", "perturb", "project", "publish"]
    assert list(seconds(planned(2000, "nearest"), FREE)) == [
        "start",
        "perturb",
        "project",
        "publish",
    ]
    without = planned(2000, "none", arrays=("gram",))
    assert list(seconds(without, FREE)) == ["start", "perturb", "publish"]


@pytest.mark.parametrize("name", [field.name for field in fields(Rates)])
def test_every_rate_counts_in_some_stage_and_none_costs_without_work(name: str) -> None:
    slow = replace(FREE, **{name: 1.0})
    found = [sum(seconds(planned(n, "aap"), slow).values()) for n in (2000, 20_000)]
    assert max(found) > 0.5
    assert max(sum(seconds(planned(n, "aap"), FREE).values()) for n in (2000, 20_000)) < 1e-6


def test_perturb_is_noise_products_reading_and_writing() -> None:
    plan = planned()
    n, d, count, side = 20_000, 128, plan.triangle.count, plan.triangle.side
    # 55 blocks on two threads: the last wave has one.
    share = 28 / 55
    noise = seconds(plan, replace(FREE, noise_samples=1e6))["perturb"]
    assert noise == pytest.approx(share * n * (n - 1) / 2 / 1e6)
    products = seconds(plan, replace(FREE, exact_flops=1e9))["perturb"]
    assert products == pytest.approx(share * 2 * d * count * side**2 / 1e9)
    writing = seconds(plan, replace(FREE, block_write_bytes=1e6))["perturb"]
    assert writing == pytest.approx(share * count * side**2 * plan.encoding.bytes / 1e6)


def test_products_are_the_operations_of_the_plan_shared_by_the_threads() -> None:
    plan = planned(method="aap")
    assert plan.blockwise is not None
    found = seconds(plan, replace(FREE, product_flops=1e9))["project"]
    even = plan.blockwise.flops / 1e9 / 2
    assert found == pytest.approx(even * uneven(plan.triangle.per_side, 2))


def test_shares_are_even_on_few_threads_and_never_below_the_mean() -> None:
    assert uneven(10, 2) < 1.1
    assert uneven(1, 1) == 1.0
    assert uneven(1, 8) == 8.0
    assert 1.0 <= uneven(140, 64) < 1.2


def test_blocks_that_workers_hold_are_read_once() -> None:
    plan = planned()
    assert plan.blockwise is not None
    whole, products = plan.blockwise.bytes_a_product, plan.blockwise.products
    assert bytes_read_from_storage(plan.blockwise, TWO) == whole
    nothing = replace(TWO, cache_bytes=0)
    assert bytes_read_from_storage(plan.blockwise, nothing) == products * whole
    half = replace(TWO, cache_bytes=whole // 4)
    expected = whole // 2 + products * (whole - whole // 2)
    assert bytes_read_from_storage(plan.blockwise, half) == pytest.approx(expected, abs=products)


def test_more_workers_take_less_until_handing_out_is_all_there_is() -> None:
    rates = replace(FREE, noise_samples=1e7, product_flops=1e9, block_values=1e8)
    few, many = planned(100_000, workers=2), planned(100_000, workers=64)
    crowd = Machines(64, 1, 2**62)
    one, two = (
        sum(seconds(plan, rates, machines).values())
        for plan, machines in ((few, TWO), (many, crowd))
    )
    assert 25 < one / two <= 32
    slow = replace(rates, task_seconds=0.1)
    tasks = many.triangle.count
    assert seconds(many, slow, crowd)["perturb"] >= 0.1 * tasks


def test_a_dense_projection_is_eigendecompositions() -> None:
    plan = planned(2000, "nearest")
    found = seconds(plan, replace(FREE, eigen_flops=1e9))["project"]
    assert found == pytest.approx(7 * 9 * 2000**3 / 1e9)


def test_a_dense_release_costs_what_it_publishes() -> None:
    rates = replace(FREE, driver_bytes=1e6, published_values=1e6)
    assert (
        seconds(planned(), rates)["publish"]
        > 100 * seconds(planned(arrays=("factor",)), rates)["publish"]
    )
