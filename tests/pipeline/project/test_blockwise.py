"""Projections on a cluster: the answers of the solvers in memory, also after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client
from numpy.typing import NDArray

from pipeline.plan.geometry import Triangle
from pipeline.project.blockwise import FinishedIteration, project_blockwise, purpose_of
from pipeline.project.checkpoint import read_checkpoint, sweep
from pipeline.project.dense import ProjectionSummary, ProjectJob, load_projection
from pipeline.storage.layout import CHECKPOINT
from scoreshield.projection import project
from scoreshield.projection.blockwise.aap import aap_blockwise
from scoreshield.projection.blockwise.box_correction import BoxCorrection
from scoreshield.projection.blockwise.nearest import nearest_blockwise
from scoreshield.projection.blockwise.panels import ArrayPanels
from scoreshield.projection.blockwise.shrink import shrink_blockwise
from scoreshield.projection.blockwise.single_precision import SinglePrecision
from scoreshield.projection.dense.shrink import EXACT_RULE
from scoreshield.projection.methods.nearest import LINEAR_SAFETY
from scoreshield.projection.solution import in_memory
from tests.harness.small_release import write_noisy

Store = tuple[Path, Triangle, NDArray[np.float32]]
SIGMA = 0.5
TOLERANCE = {"nearest": 1e-3, "shrink": 1e-3, "auto": 1e-3, "aap": 1e-3}


@dataclass
class Attempt:
    """One call of the stage, and what it told."""

    client: Client
    job: ProjectJob
    interrupt_at: int | None = None
    told: list[FinishedIteration] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return Path(self.job.target).parent / "work"

    def run(self) -> ProjectionSummary:
        return project_blockwise(self.client, self.job, self.work, 2**26, self._tell)

    def _tell(self, progress: FinishedIteration) -> None:
        self.told.append(progress)
        if progress.step.number == self.interrupt_at:
            raise KeyboardInterrupt


def job_for(store: Store, method: str, folder: Path) -> ProjectJob:
    path, triangle, _ = store
    target = folder / "projection"
    return ProjectJob(path, triangle, SIGMA, method, TOLERANCE[method], 200, "auto", target, 2)


@pytest.fixture
def attempt(client: Client, noisy_store: Store, tmp_path: Path) -> Callable[..., Attempt]:
    def make(method: str, interrupt_at: int | None = None) -> Attempt:
        return Attempt(client, job_for(noisy_store, method, tmp_path), interrupt_at)

    return make


@pytest.fixture(scope="module")
def finished(
    client: Client, noisy_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Attempt, ProjectionSummary]]:
    """An undisturbed projection by each method, made once."""

    @cache
    def make(method: str) -> tuple[Attempt, ProjectionSummary]:
        made = Attempt(client, job_for(noisy_store, method, tmp_path_factory.mktemp(method)))
        return made, made.run()

    return make


def solved_in_memory(matrix: NDArray[np.float32], method: str) -> Any:
    operator, panels = SinglePrecision(matrix), ArrayPanels(len(matrix), np.float32)
    tolerance = TOLERANCE[method]
    if method == "aap":
        return aap_blockwise(operator, panels, BoxCorrection, tolerance=tolerance)
    if method == "nearest":
        return nearest_blockwise(operator, panels, tolerance=LINEAR_SAFETY * tolerance)
    return shrink_blockwise(operator, panels, sigma=SIGMA, tolerance=tolerance)


def stored(target: Path, name: str) -> NDArray[np.float32]:
    return np.asarray(zarr.open_group(f"{target}/projection.zarr", mode="r")[name][:])


def gram(target: Path) -> NDArray[np.float64]:
    factor = stored(target, "factor").astype(np.float64)
    product = factor @ factor.T
    np.fill_diagonal(product, 1.0)
    return product


def difference(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("method", ["nearest", "shrink", "aap"])
def test_the_answer_is_that_of_the_solver_in_memory(
    finished: Callable[..., Any], noisy_store: Store, method: str
) -> None:
    made, summary = finished(method)
    described = summary.post_processing
    expected = solved_in_memory(noisy_store[2], method)
    assert difference(gram(made.job.target), in_memory(expected).gram()) < 1e-4
    assert described.method == method
    assert described.converged
    assert described.rank == expected.rank
    assert described.iterations == len(expected.history)
    assert described.products == expected.products
    assert described.parameters["form"] == "blockwise"


@pytest.mark.parametrize("method", ["nearest", "shrink", "aap"])
def test_what_is_stored_is_feasible_and_complete(finished: Callable[..., Any], method: str) -> None:
    made, summary = finished(method)
    factor, diagonal = stored(made.job.target, "factor"), stored(made.job.target, "diagonal")
    for row in factor[::50]:
        assert sum(Fraction(float(value)) ** 2 for value in row) <= 1
    squares = (factor.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(squares + diagonal, 1.0, atol=1e-6)
    certificate = summary.post_processing.certificate
    rounding = len(factor) * (factor.shape[1] + 2) * np.finfo(np.float64).eps
    assert certificate.smallest_eigenvalue_bound == float(diagonal.min()) - rounding
    assert load_projection(made.job.target) == summary
    assert not made.work.exists()


def test_progress_tells_every_iteration(finished: Callable[..., Any]) -> None:
    made, summary = finished("aap")
    history = summary.post_processing.history
    assert [told.step.number for told in made.told] == [step.number for step in history]
    assert [told.step.products for told in made.told] == [step.products for step in history]
    assert made.told[-1].seconds_left == 0.0
    assert made.told[-2].seconds_left is not None


def test_the_error_against_the_clean_matrix_is_that_of_the_dense_form(
    finished: Callable[..., Any], noisy_store: Store, matrices: Callable[..., Any]
) -> None:
    clean, _ = matrices(noisy_store[1].n, SIGMA)
    np.fill_diagonal(clean, 1.0)
    dense = project(noisy_store[2], method="nearest", form="dense").gram()
    found = difference(gram(finished("nearest")[0].job.target), clean)
    assert found == pytest.approx(difference(dense, clean), rel=1e-3)


def test_auto_says_what_it_compared(attempt: Callable[..., Attempt], noisy_store: Store) -> None:
    described = attempt("auto").run().post_processing
    expected = project(noisy_store[2], sigma=SIGMA, method="auto", form="blockwise")
    assert described.method == "auto"
    assert described.parameters["chosen"] == expected.parameters["chosen"] == "shrink"
    assert described.parameters["compared"] == expected.parameters["compared"]
    assert described.products > described.history[-1].products


def test_an_interrupted_projection_goes_on_from_its_last_iteration(
    attempt: Callable[..., Attempt], finished: Callable[..., Any]
) -> None:
    whole, expected = finished("nearest")
    first = attempt("nearest", interrupt_at=3)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = attempt("nearest")
    found = second.run().post_processing
    # The third was told and not yet stored.
    assert second.told[0].step.number == 2
    assert found.history == expected.post_processing.history
    np.testing.assert_array_equal(
        stored(second.job.target, "factor"), stored(whole.job.target, "factor")
    )


def test_a_driver_that_is_killed_goes_on_from_its_last_iteration(
    attempt: Callable[..., Attempt], finished: Callable[..., Any], noisy_store: Store
) -> None:
    whole, expected = finished("aap")
    resumed = attempt("aap")
    path, triangle, _ = noisy_store
    folder = resumed.job.target.parent
    program = DRIVER.format(
        path=str(path), triangle=triangle, folder=str(folder), tolerance=TOLERANCE["aap"]
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (resumed.work / CHECKPOINT).exists()
    summary = resumed.run()
    # In the projection that closes the iteration.
    assert resumed.told[0].step.number == 4
    assert summary.post_processing.history == expected.post_processing.history
    assert difference(gram(resumed.job.target), gram(whole.job.target)) < 1e-6


def test_the_exact_projection_that_takes_over_from_shrink_goes_on_from_its_last_iteration(
    client: Client, tmp_path: Path
) -> None:
    """Noise so small that more eigenvalues than embeddings have dimensions rise above it."""
    random, sigma, triangle = np.random.default_rng(5), 0.02, Triangle(200, 96)
    rows = random.normal(size=(200, 100))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    noise = np.triu(sigma * random.normal(size=(200, 200)), 1)
    noisy = (rows @ rows.T + noise + noise.T).astype(np.float32)
    path = write_noisy(tmp_path / "noisy.zarr", noisy, triangle)

    def attempt(name: str, interrupt_at: int | None = None) -> Attempt:
        (tmp_path / name).mkdir(exist_ok=True)
        job = replace(job_for((path, triangle, noisy), "shrink", tmp_path / name), sigma=sigma)
        return Attempt(client, job, interrupt_at)

    whole = attempt("whole").run().post_processing
    assert whole.parameters["rule"] == EXACT_RULE
    assert whole.iterations >= 4
    with pytest.raises(KeyboardInterrupt):
        attempt("again", interrupt_at=whole.iterations).run()
    again = attempt("again")
    found = again.run().post_processing
    # The last was told and not yet stored; the search for the spikes is not made again.
    assert again.told[0].step.number == whole.iterations - 1
    assert found.history == whole.history
    assert found.products == whole.products
    np.testing.assert_array_equal(
        stored(again.job.target, "factor"), stored(attempt("whole").job.target, "factor")
    )


DRIVER = """
import os, signal
from pathlib import Path
from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from pipeline.plan.geometry import Triangle
from pipeline.project.dense import ProjectJob
from pipeline.project.blockwise import project_blockwise

def kill(progress):
    if progress.step.number == 5:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    folder = Path({folder!r})
    target = folder / "projection"
    job = ProjectJob(Path({path!r}), {triangle!r}, 0.5, "aap", {tolerance}, 200, "auto", target, 2)
    with open_cluster(Cluster(), folder / "scratch") as client:
        project_blockwise(client, job, folder / "work", 2**26, kill)
"""


def test_a_worker_that_is_killed_changes_nothing(
    attempt: Callable[..., Attempt], finished: Callable[..., Any], client: Client
) -> None:
    whole, expected = finished("shrink")
    victim = attempt("shrink")
    pids = client.run(os.getpid)
    tell = victim._tell

    def kill_first(progress: FinishedIteration) -> None:
        tell(progress)
        if progress.step.number == 1:
            os.kill(min(pids.values()), signal.SIGKILL)

    victim._tell = kill_first  # type: ignore[method-assign]
    found = victim.run()
    assert found.post_processing.history == expected.post_processing.history
    np.testing.assert_array_equal(
        stored(victim.job.target, "factor"), stored(whole.job.target, "factor")
    )


@pytest.fixture(scope="module")
def interrupted(
    client: Client, noisy_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Attempt:
    job = job_for(noisy_store, "shrink", tmp_path_factory.mktemp("interrupted"))
    made = Attempt(client, job, interrupt_at=2)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    return made


@pytest.mark.parametrize(
    "damage", [None, "no file", "cut short", "another purpose", "panel gone", "panel cut short"]
)
def test_a_checkpoint_that_can_not_be_used_is_none(
    interrupted: Attempt, tmp_path: Path, damage: str | None
) -> None:
    work = shutil.copytree(interrupted.work, tmp_path / "work")
    purpose = purpose_of(interrupted.job)
    intact = read_checkpoint(work, purpose)
    assert intact is not None
    file, panel = work / CHECKPOINT, intact.panels()[0] / "0.f32"
    if damage == "no file":
        file.unlink()
    elif damage == "cut short":
        file.write_bytes(file.read_bytes()[:-200])
    elif damage == "another purpose":
        purpose = purpose_of(replace(interrupted.job, sigma=0.4))
    elif damage == "panel gone":
        panel.unlink()
    elif damage == "panel cut short":
        panel.write_bytes(panel.read_bytes()[:-4])
    assert (read_checkpoint(work, purpose) is None) == (damage is not None)


def test_a_new_attempt_keeps_only_the_panels_of_the_checkpoint(
    interrupted: Attempt, tmp_path: Path
) -> None:
    work = shutil.copytree(interrupted.work, tmp_path / "work")
    found = read_checkpoint(work, purpose_of(interrupted.job))
    assert found is not None
    sweep(work, found)
    assert sorted(work.glob("panels-*/*")) == sorted(found.panels())
    sweep(work, None)
    assert list(work.glob("panels-*")) == []
