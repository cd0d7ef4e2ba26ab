"""A method that is registered by its record alone is projected in every form, and planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipeline.config.cluster import Cluster
from pipeline.plan.geometry import Triangle
from pipeline.plan.gram import plan_release
from pipeline.project.blockwise import project_blockwise, purpose_of
from pipeline.project.checkpoint import read_checkpoint
from pipeline.project.dense import ProjectJob
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.projection import METHODS, SymmetricOperator, project
from scoreshield.projection.blockwise.panels import P, rows_in_unit_ball
from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.blockwise.subspace import factor_of, top_eigenpairs
from scoreshield.projection.certificate import feasibility_certificate, smallest_eigenvalue_bound
from scoreshield.projection.dense import eigen
from scoreshield.projection.foretold import NoisySpectrum, SolverWork, work_on_panels
from scoreshield.projection.methods.record import BlockwiseForm, ProjectionMethod
from scoreshield.projection.operator import materialise
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Iteration, Projection, from_factor
from scoreshield.projection.solution import Solution
from tests.harness.cluster import THREADS
from tests.harness.small_release import write_noisy

N, RANK = 120, 3


@dataclass(frozen=True, eq=False)
class LeadingState:
    """The pairs that were found, and the one step."""

    vectors: Any
    values: Any
    history: tuple[Iteration, ...]


def dense(operator: SymmetricOperator, request: ProjectionRequest) -> Projection:
    matrix, products = materialise(operator)
    factor = eigen.top_eigenpairs(matrix, RANK).positive_factor()
    certificate = feasibility_certificate(factor, 0.0)
    return from_factor(
        factor, method="leading", parameters={}, certificate=certificate, products=products
    )


def blockwise(problem: BlockwiseProblem[P]) -> Solution[P]:
    iteration = problem.iteration(problem.request.tolerance, (LeadingState,))
    state = iteration["resume_from"]
    if state is None:
        pairs = top_eigenpairs(problem.operator, problem.algebra, RANK)
        step = Iteration(1, 0.0, RANK, 1)
        state = LeadingState(pairs.vectors, pairs.values, (step,))
        if problem.checkpoint is not None:
            problem.checkpoint(state)
        if iteration["progress"] is not None:
            iteration["progress"](step)
    rows = factor_of(problem.algebra, state.vectors, state.values[:RANK])
    factor, diagonal = rows_in_unit_ball(problem.algebra, rows)
    certificate = replace(
        feasibility_certificate(np.zeros((1, 0)), 0.0),
        smallest_eigenvalue_bound=smallest_eigenvalue_bound(factor, diagonal),
    )
    return Solution(factor, diagonal, "leading", certificate, {}, state.history, 1, True)


def work(spectrum: NoisySpectrum) -> SolverWork:
    return work_on_panels(
        spectrum, rank=RANK, products=9, columns=9 * RANK, steps=50, passes=25, largest=RANK
    )


LEADING = ProjectionMethod(
    name="leading",
    summary="the leading eigenpairs",
    dense=dense,
    matrices_at_peak=3.0,
    eigendecompositions=1,
    blockwise=BlockwiseForm(
        solve=blockwise, width=lambda _: 2.0 * RANK, work=work, states=(LeadingState,)
    ),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line of the registry."""
    monkeypatch.setitem(METHODS, "leading", LEADING)


@pytest.fixture
def noisy(matrices: Callable[..., Any]) -> Any:
    return matrices(N, 0.2)[1]


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Any]:
    with THREADS.open(Cluster(), tmp_path) as client:
        yield client


def test_in_memory(noisy: Any) -> None:
    whole, products = (
        project(noisy, method="leading", form=form) for form in ("dense", "blockwise")
    )
    assert (whole.rank, products.rank, products.method) == (RANK, RANK, "leading")
    np.testing.assert_allclose(products.gram(), whole.gram(), atol=1e-4)


def test_on_a_cluster_also_from_a_checkpoint(noisy: Any, threads: Any, tmp_path: Path) -> None:
    triangle = Triangle(N, 48)
    path = write_noisy(tmp_path / "noisy.zarr", noisy, triangle)
    target, solver = tmp_path / "projection", tmp_path / "work"
    job = ProjectJob(path, triangle, 0.2, "leading", 1e-3, 10, "auto", target, 2)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project_blockwise(threads, job, solver, 2**20, interrupt)
    assert read_checkpoint(solver, purpose_of(job)) is not None
    # Made again, the step would interrupt again.
    described = project_blockwise(threads, job, solver, 2**20, interrupt).post_processing
    assert (described.method, described.rank, described.iterations) == ("leading", RANK, 1)
    stored = zarr.open_group(f"{target}/projection.zarr", mode="r")["factor"][:]
    expected = project(noisy, method="leading", form="dense").gram()
    found = stored.astype(np.float64) @ stored.astype(np.float64).T
    np.fill_diagonal(found, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_its_plan(form: Any) -> None:
    mechanism = calibrate_gram(N, 16, 8.0, 1e-6)
    plan = plan_release(mechanism, "leading", ("factor",), "auto", 1, workers=2, form=form)
    assert plan.projects
    if form == "blockwise":
        assert plan.blockwise is not None
        assert (plan.blockwise.width, plan.blockwise.products) == (2 * RANK, 9)
