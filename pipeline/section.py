"""What every section of a configuration is made of: strict models, values that mean one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, ValidationInfo


def _number(value: object) -> object:
    """Refuse YAML booleans, which count as 0 and 1; accept ``1e-6``, which YAML calls text."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {str(value).lower()}")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
Bytes = Annotated[ByteSize, BeforeValidator(_number)]


class Section(BaseModel):
    """Strict and frozen: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def anchored(path: Path, info: ValidationInfo) -> Path:
    """An absolute path; a relative one starts at the configuration's own folder."""
    folder = (info.context or {}).get("folder", Path.cwd())
    if path == Path():
        raise ValueError("expected a path, found nothing")
    try:
        return Path(folder / path.expanduser()).resolve()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"expected a path, found {str(path)!r}: {error}") from error
