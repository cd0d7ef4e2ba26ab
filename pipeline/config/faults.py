"""The faults of a configuration in words, each with its place in the file."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from pipeline.config.cluster import SECTIONS
from pipeline.config.strict_model import StrictModel
from scoreshield.faults import fault_in_words
from scoreshield.printable import printable


def faults_of(error: ValidationError, root: type[StrictModel]) -> list[str]:
    """One line a fault; an unknown key comes with the nearest known one of ``root``."""
    return [_fault(fault, root) for fault in error.errors(include_url=False)]


def _fault(fault: Any, root: type[StrictModel]) -> str:
    place = printable(".".join(str(part) for part in _as_written(fault["loc"])))
    prefix = f"{place}: " if place else ""
    if fault["type"] == "extra_forbidden":
        return f"{prefix}unknown key{_suggestion(fault['loc'], root)}"
    if fault["type"] == "missing" and isinstance(fault["input"], dict):
        return f"{prefix}this key is required"
    return f"{prefix}{fault_in_words(fault)}"


def _as_written(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place in the file: without the kind of cluster whose model found the fault."""
    return location[:1] + location[2:] if location[:1] == ("cluster",) else location


def _suggestion(location: tuple[str | int, ...], root: type[StrictModel]) -> str:
    section: Any = root
    for part in location[:-1]:
        section = SECTIONS.get(str(part)) or section.model_fields[str(part)].annotation
    known = list(section.model_fields)
    nearest = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known keys: {', '.join(known)}"
