"""A target directory that appears complete or not at all.

The work happens in ``.NAME.ingesting`` beside the target, held by a lock that the operating system
drops when the process ends. What a killed ingest left under that name is swept by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.errors import RunFailed
from pipeline.gallery.store import is_gallery
from pipeline.storage.durable import sync, sync_tree
from pipeline.storage.lock import locked
from pipeline.storage.place import Place
from scoreshield.errors import InputRejected


def check_target(target: Place, overwrite: bool) -> None:
    """Refuse a target that exists, unless it is a gallery and ``overwrite`` says so.

    Raises
    ------
    InputRejected
        Something is there that this ingest may not replace.
    """
    if not (os.path.lexists(target) if isinstance(target, Path) else target.exists()):
        return
    if not is_gallery(target):
        raise InputRejected(
            f"{target}: exists and is not a gallery, so it is never overwritten. Choose another "
            "target or remove it yourself."
        )
    if not overwrite:
        raise InputRejected(
            f"{target}: a gallery exists there already. Choose another target, or ask for "
            "overwriting."
        )


@contextmanager
def staged(target: Path, overwrite: bool) -> Iterator[Path]:
    """A private empty directory that becomes ``target`` when the body ends without an error.

    Raises
    ------
    InputRejected
        The target may not be replaced.
    RunFailed
        Another ingest is writing the same target.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.ingesting"), target) as staging:
        _undo_replacement(target)
        check_target(target, overwrite)
        try:
            yield staging
            sync_tree(staging)
            _replace(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


@contextmanager
def _locked(staging: Path, target: Path) -> Iterator[Path]:
    """The staging directory, empty and held by this process alone."""
    make, flags = partial(staging.mkdir, 0o700, exist_ok=True), os.O_DIRECTORY | os.O_NOFOLLOW
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(staging, make, flags, wait=False))
        except BlockingIOError as error:
            raise RunFailed(
                f"{target}: another ingest is writing this gallery. Wait for it to end, or choose "
                "another target."
            ) from error
        _sweep(staging)
        staging.chmod(0o700)
        yield staging


def _sweep(staging: Path) -> None:
    for leftover in staging.iterdir():
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _replaced(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def _undo_replacement(target: Path) -> None:
    """Finish or undo what a kill between the two renames of ``_replace`` left behind."""
    replaced = _replaced(target)
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)


def _replace(staging: Path, target: Path) -> None:
    replaced = _replaced(target)
    if target.exists():
        target.rename(replaced)
    try:
        staging.rename(target)
    except OSError:
        _undo_replacement(target)
        raise
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)
