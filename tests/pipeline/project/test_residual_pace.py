"""The time left, told from how fast the residual has fallen."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.project.residual_pace import ResidualPace


@pytest.mark.parametrize(
    ("residuals", "left"),
    [
        ([1.0, 0.1, 0.01], 1.0),
        ([1.0, 0.5, 0.25], pytest.approx(7.97, abs=0.01)),
        ([1.0, 0.1], None),
        ([1.0, 1.0, 1.0], None),
        ([0.1, 0.2, 0.4], None),
        ([1.0, 1e-3], 0.0),
    ],
)
def test_time_left(residuals: list[float], left: Any) -> None:
    seconds = iter(range(10))
    pace = ResidualPace(1e-3, clock=lambda: float(next(seconds)))
    told = [pace.seconds_left(residual) for residual in residuals]
    assert told[-1] == (pytest.approx(left) if isinstance(left, float) else left)
