"""Cutting a matrix of scores into blocks; the triangle's arithmetic is in test_plan.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.geometry import Rectangle, Triangle


@given(
    m=st.integers(1, 40), n=st.integers(1, 60), rows=st.integers(1, 45), columns=st.integers(1, 70)
)
def test_blocks_cover_every_score_once(m: int, n: int, rows: int, columns: int) -> None:
    rectangle = Rectangle(m, n, rows, columns)
    covered = np.zeros((m, n), dtype=int)
    for index in range(rectangle.count):
        region = rectangle.region(index)
        covered[region] += 1
        assert covered[region].shape <= rectangle.shape
        assert covered[region].size > 0
    assert (covered == 1).all()


def test_sizes_stay_python_integers() -> None:
    rectangle = Rectangle(10**7, 10**9, 1024, 2048)
    assert rectangle.count == -(-(10**7) // 1024) * -(-(10**9) // 2048) > 2**32
    rows, columns = rectangle.region(rectangle.count - 1)
    assert (rows.stop, columns.stop) == (10**7, 10**9)


@pytest.mark.parametrize("index", [-1, 6])
def test_there_are_no_other_blocks(index: int) -> None:
    with pytest.raises(IndexError, match="no block"):
        Rectangle(3, 5, 2, 2).region(index)


def test_neighbours_share_their_records() -> None:
    rectangle = Rectangle(3, 5, 2, 2)
    assert [rectangle.region(index)[1].start for index in range(6)] == [0, 0, 2, 2, 4, 4]


def test_a_triangles_region_is_that_of_its_position() -> None:
    triangle = Triangle(50, 16)
    for index in range(triangle.count):
        i, j = triangle.position(index)
        assert triangle.region(index) == (triangle.span(i), triangle.span(j))
    assert triangle.shape == (16, 16)
