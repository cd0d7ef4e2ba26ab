"""What every section of a configuration is: a strict model of values that mean one thing."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
)

from scoreshield.faults import shown


def _number(value: object) -> object:
    """Refuse YAML booleans, which count as 0 and 1; accept ``1e-6``, which YAML calls text."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {str(value).lower()}")
    return value


def _count_or_auto(value: object) -> object:
    """A union's two complaints about one wrong value, as one."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"expected a whole number or 'auto', found {shown(value)}")


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
Bytes = Annotated[ByteSize, BeforeValidator(_number)]
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]


def matching(pattern: str, words: str) -> AfterValidator:
    """Text that matches a pattern, described in ``words`` where it doesn't."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


class StrictModel(BaseModel):
    """Strict and frozen: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
