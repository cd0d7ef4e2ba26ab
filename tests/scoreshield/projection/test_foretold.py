"""Forecasts of a solver's work, held to what real solves take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.projection import METHODS, DenseOperator, project
from scoreshield.projection.foretold import NoisySpectrum, SolverWork
from scoreshield.projection.operator import CountingOperator

BLOCKWISE = [name for name, method in METHODS.items() if method.blockwise is not None]


def foretold(method: str, n: int, d: int, sigma: float) -> SolverWork:
    form = METHODS[method].blockwise
    assert form is not None
    return form.work(NoisySpectrum(n, d, sigma))


@given(
    n=st.integers(2, 10**7),
    d=st.integers(1, 4096),
    sigma=st.floats(1e-6, 1e6),
    method=st.sampled_from(BLOCKWISE),
)
def test_every_size_and_noise_has_a_forecast(n: int, d: int, sigma: float, method: str) -> None:
    work = foretold(method, n, d, sigma)
    assert 0 <= work.rank <= n
    assert 1 <= work.products <= work.columns <= work.products * n + 128
    # The density of the spectrum takes panels of a fixed width, whatever n is.
    assert 1 <= work.mean_columns <= 2 * n + 8
    assert min(work.steps, work.panel_numbers, work.panel_flops, work.driver_flops) > 0
    assert (work.computed_products > 0) == (method == "aap")


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_noise_alone_leaves_the_rank_of_the_semicircle(n: int) -> None:
    """1.4·n·R^-0.6 for R = 2σ√n far above everything else."""
    sigma = 10.0 * np.sqrt(n)
    expected = 1.41 * n * (2 * sigma * np.sqrt(n)) ** -0.6
    work = foretold("nearest", n, 128, sigma)
    assert work.rank == pytest.approx(expected, rel=0.05, abs=1)


def test_without_noise_the_spikes_are_the_features() -> None:
    assert foretold("shrink", 10_000, 64, 1e-9).rank == 64


def test_what_stands_out_needs_fewer_products_of_nearest() -> None:
    calm, loud = (foretold("nearest", 20_000, 128, sigma) for sigma in (0.5, 100.0))
    assert calm.products < loud.products


def within(factor: float, foretold: float, counted: float) -> bool:
    return counted / factor <= foretold <= counted * factor


@pytest.mark.parametrize("method", ["nearest", "shrink"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
def test_real_solves_take_about_what_was_foretold(
    noisy_gram: Any, method: str, sigma: float
) -> None:
    counted = CountingOperator(DenseOperator(noisy_gram(800, sigma)))
    project(counted, sigma=sigma, method=method, form="blockwise")
    work = foretold(method, 800, 16, sigma)
    assert within(1.7, work.products, counted.products)
    assert within(2.2, work.columns, counted.columns)
