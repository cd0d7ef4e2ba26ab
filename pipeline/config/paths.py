"""Paths in a configuration: relative ones start at the configuration's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, PlainValidator, ValidationInfo

from pipeline.errors import ConfigurationError
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, place_of
from scoreshield.faults import shown


def anchored(value: Any, info: ValidationInfo) -> Any:
    """A value whose relative paths are absolute: a path, or a section that has some."""
    if isinstance(value, BaseModel):
        paths = {key: path for key, path in value if isinstance(path, Path)}
        return value.model_copy(update={key: _absolute(path, info) for key, path in paths.items()})
    return _absolute(value, info) if isinstance(value, Path) else value


def _absolute(path: Path, info: ValidationInfo) -> Path:
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


def _place(value: object) -> Place:
    """A path, or a URL of an object store."""
    if not isinstance(value, str | Path | ObjectPath):
        raise ValueError(f"expected a path or a URL, found {shown(value)}")
    try:
        return place_of(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


AnchoredPath = Annotated[Path, AfterValidator(anchored)]
PathOrUrl = Annotated[Place, PlainValidator(_place), AfterValidator(anchored)]
