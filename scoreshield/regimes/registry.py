"""The registry of regimes: a new one is a file beside this one, and a line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from scoreshield.faults import shown
from scoreshield.regimes.gram import GRAM
from scoreshield.regimes.record import Regime
from scoreshield.regimes.scores import SCORES

REGIMES: dict[str, Regime] = {regime.name: regime for regime in (GRAM, SCORES)}
"""Every regime by its name."""


def publisher(array: str) -> Regime:
    """The regime that publishes an array; KeyError where none does."""
    return {name: regime for regime in REGIMES.values() for name in regime.arrays}[array]


def _regime_name(value: object) -> str:
    return _one_of(list(REGIMES), value)


def _array_name(value: object) -> str:
    return _one_of([name for regime in REGIMES.values() for name in regime.arrays], value)


def _one_of(names: list[str], value: object) -> str:
    if isinstance(value, str) and value in names:
        return value
    *first, last = map(repr, names)
    raise ValueError(f"expected {', '.join(first)} or {last}, found {shown(value)}")


RegimeName = Annotated[
    str,
    PlainValidator(_regime_name),
    WithJsonSchema({"enum": list(REGIMES), "title": "Regime", "type": "string"}),
]
"""The name of a registered regime."""

ArrayName = Annotated[str, PlainValidator(_array_name)]
"""The name of an array that some regime publishes."""
