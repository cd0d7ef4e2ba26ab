"""Products and steps cut into tasks: every block once, even work, owners that keep theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.shares import ShareOwners, cut_shares, row_ranges


@given(st.integers(1, 80), st.integers(1, 70))
def test_shares_hold_every_block_once(per_side: int, threads: int) -> None:
    shares = cut_shares(per_side, threads)
    blocks = [(i, j) for share in shares for i in share.rows for j in share.columns if i <= j]
    assert sorted(blocks) == [(i, j) for i in range(per_side) for j in range(i, per_side)]
    assert sum(share.work for share in shares) == per_side**2
    assert [share.index for share in shares] == list(range(len(shares)))


def test_work_is_even_and_stays_where_it_is() -> None:
    shares = cut_shares(40, 2)
    owners = ShareOwners(shares)
    first = owners.among({"a": 1, "b": 1})
    load = {
        worker: sum(share.work for share in shares if first[share.index] == worker)
        for worker in "ab"
    }
    assert load["a"] == load["b"]
    after = owners.among({"b": 1, "c": 1})
    assert all(after[index] == "b" for index, worker in first.items() if worker == "b")
    assert {after[index] for index, worker in first.items() if worker == "a"} == {"c"}
    assert owners.among({"b": 1, "c": 1}) == after


def test_a_thread_more_is_more_work() -> None:
    shares = cut_shares(40, 4)
    placed = ShareOwners(shares).among({"one": 1, "three": 3})
    work = sum(share.work for share in shares if placed[share.index] == "three")
    assert work == pytest.approx(0.75 * 40**2, rel=0.1)


@pytest.mark.parametrize(
    ("n", "threads", "rows", "count"),
    [
        (600, 2, 600, 1),
        (20_000, 2, 4096, 5),
        (100_000, 2, 16_667, 6),
        (1_000_000, 64, 5209, 192),
    ],
)
def test_row_ranges(n: int, threads: int, rows: int, count: int) -> None:
    ranges = row_ranges(n, threads)
    assert (ranges.rows, ranges.count) == (rows, count)
    assert [ranges.span(0).start, ranges.span(count - 1).stop] == [0, n]
