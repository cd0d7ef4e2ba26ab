"""What is shown fills one line and hides nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, σ = 1", "plain, σ = 1"),
        ("a\nb", r"a\nb"),
        ("\x1b[8m", r"\x1b[8m"),
        ("\u202e", r"\u202e"),
        ("\u2028", r"\u2028"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_has_no_glyph_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_any_text_becomes_printable_and_a_printable_one_stays(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
