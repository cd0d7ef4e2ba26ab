"""What a person is told during a blockwise projection, product by product."""

from __future__ import annotations

import pytest

from pipeline.progress import _shown
from pipeline.project.blockwise import FinishedIteration
from pipeline.project.solver_reporter import SolverReporter
from scoreshield.projection.result import Iteration
from tests.harness.reporters import Told


class Clock:
    """Two seconds a look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_long_first_iteration_is_not_silent(told: Told) -> None:
    clock = Clock()
    solving = SolverReporter(told, "nearest", 10, clock)
    for product in (1, 2):
        clock.now += 2.0
        solving.multiplied(1000 * product)
    assert told.lines[-1] == {
        "done": 0,
        "method": "nearest",
        "residual": None,
        "products": 2,
        "bytes_read": 2000,
        # Eight products at two seconds each are typically still to come.
        "seconds_left": 16.0,
    }


def test_the_pace_of_the_residual_is_believed_once_there_is_one(told: Told) -> None:
    clock = Clock()
    solving = SolverReporter(told, "aap", 10, clock)
    clock.now = 2.0
    solving.multiplied(7)
    solving.iterated(FinishedIteration(Iteration(3, 0.25, 5, 3, 1), 7, 30.0))
    assert (told.lines[-1]["done"], told.lines[-1]["residual"]) == (3, 0.25)
    assert told.lines[-1]["seconds_left"] == 30.0
    clock.now = 12.0
    solving.multiplied(9)
    assert told.lines[-1]["seconds_left"] == 20.0
    assert (told.lines[-1]["done"], told.lines[-1]["products"]) == (3, 2)


def test_more_products_than_typical_leave_the_time_open(told: Told) -> None:
    solving = SolverReporter(told, "shrink", 1, Clock())
    solving.multiplied(0)
    solving.multiplied(0)
    assert told.lines[-1]["seconds_left"] is None


def test_a_resumed_solve_counts_on(told: Told) -> None:
    clock = Clock()
    solving = SolverReporter(told, "nearest", 50, clock)
    solving.iterated(FinishedIteration(Iteration(4, 0.1, 5, 4, 40), 0, None))
    clock.now = 3.0
    solving.multiplied(5)
    assert told.lines[-1]["products"] == 41
    assert told.lines[-1]["seconds_left"] == pytest.approx(3.0 * 9)


def test_a_line_for_a_person_has_units(told: Told) -> None:
    solving = SolverReporter(told, "nearest", 10, Clock())
    solving.iterated(FinishedIteration(Iteration(4, 0.00125, 5, 4, 40), 3 * 2**30, 7200.0))
    figures = {name: value for name, value in told.lines[-1].items() if name != "done"}
    assert _shown(figures) == (
        "method nearest residual 0.00125 products 40 read 3.0 GiB left 2.0 hours"
    )
