"""Text from elsewhere made safe to show: one line, no terminal codes, nothing that can't be seen.

A line break in a name could otherwise forge a line of a report, and an escape sequence hide one.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with every character that can't be shown written as its escape sequence."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
