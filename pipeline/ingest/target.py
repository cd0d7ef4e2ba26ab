"""Where a gallery is made: refused early, then complete or not there at all."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipeline.errors import RunFailed, in_words
from pipeline.gallery.store import Location, stored_lineage
from pipeline.ingest.staging import check_target, staged
from pipeline.ingest.uploading import uploading
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, resolved
from scoreshield.errors import ParameterError

ZeroRows = Literal["refuse", "substitute"]
CountDone = Callable[[int], None]
"""Is told how many records, or interactions, are done."""


@dataclass(frozen=True)
class Unfinished:
    """A gallery while it is written: its place, its lineage, a private folder for scratch."""

    place: Place
    lineage: str
    scratch: Path


def checked_target(
    target: Location, overwrite: bool, zero_rows: ZeroRows, lineage: str | None
) -> Place:
    """The place of a gallery to be made, before its source is read.

    Raises
    ------
    InputRejected
        Something is there that may not be replaced.
    ParameterError
        ``zero_rows`` or ``lineage`` is none.
    """
    if zero_rows not in get_args(ZeroRows):
        raise ParameterError(f"zero_rows is {zero_rows!r}, expected 'refuse' or 'substitute'.")
    if lineage is not None and not re.fullmatch("[0-9a-f]{32}", lineage):
        raise ParameterError(f"lineage is {lineage!r}, expected 32 hexadecimal digits.")
    destination = resolved(target)
    if isinstance(destination, Path):
        check_target(destination, overwrite)
    return destination


@contextmanager
def unfinished(
    source: str, target: Place, overwrite: bool, lineage: str | None
) -> Iterator[Unfinished]:
    """What becomes ``target`` when the body ends without an error, or is gone.

    Raises
    ------
    RunFailed
        The target can't be written, or another ingest is writing it.
    """
    try:
        if isinstance(target, ObjectPath):
            kept = lineage or _lineage(source, target)
            with uploading(target, overwrite, kept) as scratch:
                yield Unfinished(target, kept, scratch)
        else:
            with staged(target, overwrite) as staging:
                yield Unfinished(staging, lineage or _lineage(source, target), staging)
    except OSError as error:
        raise RunFailed(
            f"{target}: the gallery could not be written: {in_words(error)}. Nothing was left "
            "there; make room or choose another target, and ingest again."
        ) from error


def _lineage(source: str, target: Place) -> str:
    """Lineage of the same people's data where it is known, else a new one.

    The array of a gallery lies in the gallery's directory, whichever way it was named.
    """
    for gallery in (Path(os.path.realpath(source)).parent, target):
        found = stored_lineage(gallery)
        if found is not None:
            return found
    return uuid.uuid4().hex
