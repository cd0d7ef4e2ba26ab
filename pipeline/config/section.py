"""What every section of a configuration is made of: strict models, values that mean one thing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    ValidationInfo,
)


def _number(value: object) -> object:
    """Refuse YAML booleans, which count as 0 and 1; accept ``1e-6``, which YAML calls text."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {str(value).lower()}")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
Bytes = Annotated[ByteSize, BeforeValidator(_number)]


def matching(pattern: str, words: str) -> AfterValidator:
    """Text that matches a pattern, described in ``words`` where it doesn't."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


class Section(BaseModel):
    """Strict and frozen: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def anchored(path: Path, info: ValidationInfo) -> Path:
    """An absolute path; a relative one starts at the configuration's own folder."""
    folder = (info.context or {}).get("folder", Path.cwd())
    if path == Path():
        raise ValueError("expected a path, found nothing")
    if "\0" in str(path):
        raise ValueError("expected a path, found text with a null byte in it")
    try:
        return Path(folder / path.expanduser()).resolve()
    except RuntimeError as error:
        # Also what Python makes of a loop of links.
        reason = "no user of that name" if str(path).startswith("~") else "links in a circle"
        raise ValueError(f"expected a path, found {str(path)!r}: {reason}") from error
    except OSError as error:
        raise ValueError(f"expected a path, found {str(path)!r}: {error.strerror}") from error
