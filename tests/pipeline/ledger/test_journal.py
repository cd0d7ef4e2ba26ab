"""The chain of hashes: whatever is changed, removed, inserted or swapped breaks it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger.journal import Event, Head, Row, chain_fault, genesis, head_fault, head_of

START = genesis("format", b"secret")
TEXT = st.text(max_size=20)
FIELDS = ("lineage", "kind", "subject", "body", "recorded_at")


def chained(contents: list[tuple[str, str, str, str, str]]) -> list[Row]:
    rows: list[Row] = []
    for number, fields in enumerate(contents, start=1):
        rows.append(Event(number, *fields).chained_to(head_of(START, rows).hash))
    return rows


ROWS = chained([(f"lineage {number}", "reserved", "r", "{}", "now") for number in range(5)])
JOURNALS = st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT), min_size=1, max_size=6).map(chained)


@given(rows=JOURNALS)
def test_what_is_appended_holds(rows: list[Row]) -> None:
    assert chain_fault(START, rows) is None
    for length in range(len(rows) + 1):
        assert head_fault(head_of(START, rows[:length]), START, rows) is None


@given(rows=JOURNALS, data=st.data())
def test_any_change_of_any_field_is_found_and_named(rows: list[Row], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(FIELDS))
    changed = data.draw(TEXT.filter(lambda text: text != getattr(rows[index], name)))
    rows[index] = replace(rows[index], **{name: changed})
    fault = chain_fault(START, rows)
    assert fault is not None
    assert f"row {index + 1} " in fault


@given(rows=JOURNALS, data=st.data())
def test_a_rewritten_chain_contradicts_the_head(rows: list[Row], data: st.DataObject) -> None:
    """Every hash is made right again; only the head that was seen before tells."""
    index = data.draw(st.integers(0, len(rows) - 1))
    contents = [tuple(getattr(row, name) for name in FIELDS) for row in rows]
    contents[index] = (*contents[index][:3], contents[index][3] + " ", contents[index][4])
    rewritten = chained(contents)
    assert chain_fault(START, rewritten) is None
    fault = head_fault(head_of(START, rows), START, rewritten)
    assert fault is not None
    assert f"row {len(rows)} " in fault


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (ROWS[1:], "row 1 is missing"),
        (ROWS[:2] + ROWS[3:], "row 3 is missing"),
        ([*ROWS[:1], ROWS[2], ROWS[1], *ROWS[3:]], "row 2 is missing"),
        ([*ROWS[:2], ROWS[1], *ROWS[2:]], "row 3 is missing"),
        ([*ROWS[:2], replace(ROWS[1], sequence=3), *ROWS[3:]], "row 3 .*was changed"),
    ],
)
def test_rows_removed_swapped_or_repeated(rows: list[Row], named: str) -> None:
    assert re.search(named, str(chain_fault(START, rows)))


def test_another_ledger_begins_another_chain() -> None:
    for other in (genesis("format", b"other"), genesis("other", b"secret")):
        assert "row 1 " in str(chain_fault(other, ROWS))
        assert head_fault(head_of(START, []), other, []) is not None


def test_fields_do_not_run_into_each_other() -> None:
    hashes = {
        Event(1, *fields, "", "", "").hash_after(START.hash)
        for fields in (("a", "bc"), ("ab", "c"), ("abc", ""), ('a","bc', ""))
    }
    assert len(hashes) == 4


def test_the_hash_is_what_the_document_says() -> None:
    """Kept as a number: a change of the form would make every stored ledger look edited."""
    event = Event(1, "l", "opened", "", "{}", "2026-01-02T03:04:05+00:00")
    assert event.hash_after("0" * 64) == (
        "9ab226c0441b1ad36290d65314ff2c2b5cf6897273804162f1c09fd2af63ed17"
    )


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (START, None),
        (Head(5, ROWS[4].hash), None),
        (Head(3, ROWS[2].hash), None),
        (Head(6, ROWS[4].hash), "row 6 was here before, and now the newest is row 5 "),
        (Head(3, ROWS[3].hash), "row 3 .*is not what was here before"),
        (Head(0, ROWS[0].hash), "its identity is not"),
    ],
)
def test_a_head_seen_before(head: Head, fault: str | None) -> None:
    found = head_fault(head, START, ROWS)
    assert found is None if fault is None else re.search(fault, str(found))


def test_an_emptied_ledger() -> None:
    assert "now the newest is nothing" in str(head_fault(Head(2, ROWS[1].hash), START, []))
