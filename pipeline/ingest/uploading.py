"""A target in an object store that becomes a gallery with its last object.

There is no renaming there, so rows are written where they stay. What makes them a gallery, the
group's attributes, is written last; a claim keeps a second ingest away meanwhile.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import RunFailed
from pipeline.gallery.store import is_gallery
from pipeline.ingest.staging import check_target
from pipeline.storage.claim import claim, read_claim
from pipeline.storage.layout import INGEST_CLAIM, METADATA
from pipeline.storage.object_path import ObjectPath


@contextmanager
def uploading(target: ObjectPath, overwrite: bool, lineage: str) -> Iterator[Path]:
    """Hold an empty target while the body writes it; yields a private local folder for scratch.

    Whatever ends the body, a target that did not become a gallery is empty again. One that is
    overwritten is gone from the start: an object store has no place for both.

    Raises
    ------
    InputRejected
        The target may not be replaced.
    RunFailed
        Another ingest writes it, or was killed while it did.
    """
    held = target / INGEST_CLAIM
    if not is_gallery(target):
        left = read_claim(held)
        if left:
            raise _claimed(target, str(left.get("lineage")))
    check_target(target, overwrite)
    if not claim(held, secrets.token_hex(16), lineage=lineage):
        raise _claimed(target, str(read_claim(held).get("lineage")))
    try:
        _empty(target)
        with tempfile.TemporaryDirectory(prefix="scoreshield-") as scratch:
            yield Path(scratch)
    except BaseException:
        _empty(target)
        held.delete()
        raise
    held.delete()


def _empty(target: ObjectPath) -> None:
    """Remove all but the claim, what makes it a gallery first."""
    (target / METADATA).delete()
    for name in {name.partition("/")[0] for name in target.files()} - {INGEST_CLAIM}:
        (target / name).delete()


def _claimed(target: ObjectPath, lineage: str) -> RunFailed:
    return RunFailed(
        f"{target}: another ingest is writing this gallery, or was killed while it did. Wait for "
        "it; if none is running, delete everything below that URL and ingest again with "
        f"--lineage {lineage}, so that the budget already spent stays with it."
    )
