"""Forecasts of a solver's work, held to what real solves take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.solver_work import SolverWork, foretell_work
from scoreshield.mechanisms.gaussian import Mechanism, calibrate_gram
from scoreshield.projection.blockwise.methods import LINEAR_SAFETY
from scoreshield.projection.blockwise.nearest import nearest_blockwise
from scoreshield.projection.blockwise.panels import ArrayPanels, CountedProducts
from scoreshield.projection.blockwise.shrink import shrink_blockwise

METHODS = ("aap", "auto", "nearest", "shrink")


def mechanism(n: int, d: int, sigma: float) -> Mechanism:
    return replace(calibrate_gram(n, d, 8.0, 1e-6), sigma=sigma)


@given(
    n=st.integers(2, 10**7),
    d=st.integers(1, 4096),
    sigma=st.floats(1e-6, 1e6),
    method=st.sampled_from(METHODS),
)
def test_every_size_and_noise_has_a_forecast(n: int, d: int, sigma: float, method: str) -> None:
    work = foretell_work(mechanism(n, d, sigma), method)
    assert 0 <= work.rank <= n
    assert 1 <= work.products <= work.columns <= work.products * n + 128
    # The density of the spectrum takes panels of a fixed width, whatever n is.
    assert 1 <= work.mean_columns <= 2 * n + 8
    assert min(work.steps, work.panel_bytes, work.panel_flops, work.driver_flops) > 0
    assert (work.computed_products > 0) == (method == "aap")


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_noise_alone_leaves_the_rank_of_the_semicircle(n: int) -> None:
    """1.4·n·R^-0.6 for R = 2σ√n far above everything else."""
    sigma = 10.0 * np.sqrt(n)
    expected = 1.41 * n * (2 * sigma * np.sqrt(n)) ** -0.6
    work = foretell_work(mechanism(n, 128, sigma), "nearest")
    assert work.rank == pytest.approx(expected, rel=0.05, abs=1)


def test_without_noise_the_spikes_are_the_features() -> None:
    assert foretell_work(mechanism(10_000, 64, 1e-9), "shrink").rank == 64


def test_what_stands_out_needs_fewer_products_of_nearest() -> None:
    calm, loud = (mechanism(20_000, 128, sigma) for sigma in (0.5, 100.0))
    assert foretell_work(calm, "nearest").products < foretell_work(loud, "nearest").products


class Matrix:
    """A noisy matrix by its products."""

    def __init__(self, values: Any) -> None:
        self._values, self.n = values, len(values)

    def matmat(self, W: Any, /) -> Any:
        return self._values @ W


def solved(method: str, values: Any, sigma: float) -> CountedProducts[Any]:
    counted: CountedProducts[Any] = CountedProducts(Matrix(values))
    panels = ArrayPanels(len(values), np.float32)
    if method == "nearest":
        nearest_blockwise(counted, panels, tolerance=LINEAR_SAFETY * 1e-4)
    else:
        shrink_blockwise(counted, panels, sigma=sigma, tolerance=1e-4)
    return counted


def within(factor: float, foretold: float, counted: float) -> bool:
    return counted / factor <= foretold <= counted * factor


@pytest.mark.parametrize("method", ["nearest", "shrink"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
def test_real_solves_take_about_what_was_foretold(method: str, sigma: float, matrices: Any) -> None:
    n = 800
    _, noisy = matrices(n, sigma)
    counted = solved(method, noisy, sigma)
    work: SolverWork = foretell_work(mechanism(n, 16, sigma), method)
    assert within(1.7, work.products, counted.products)
    assert within(2.2, work.columns, counted.columns)
