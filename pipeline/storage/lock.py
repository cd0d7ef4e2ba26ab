"""Holding a folder: one process at a time, and no trace of a hold under which nothing was made."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import RunFailed, ScoreShieldError
from pipeline.storage.durable import make_private
from pipeline.storage.layout import LOCK


@contextlib.contextmanager
def held(folder: Path, *, wait: bool) -> Iterator[None]:
    """Make a private folder and hold it; it goes again where the body leaves nothing in it.

    Parameters
    ----------
    wait : for whoever holds it; where that is not wanted, BlockingIOError is raised at once
    """
    descriptor = _acquired(folder, wait)
    try:
        yield
    finally:
        if os.listdir(folder) == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()
        os.close(descriptor)


@contextlib.contextmanager
def without_empty(*folders: Path) -> Iterator[None]:
    """Remove those of some folders that a refused body made and left empty, in the order given.

    They stay where the body ended as a run that goes on: another process may be driving it, and be
    about to write there.
    """
    made = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except RunFailed:
        raise
    except ScoreShieldError:
        for folder in made:
            # One that is not empty, or was never made, stays as it is.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _acquired(folder: Path, wait: bool) -> int:
    while True:
        make_private(folder)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # Whoever held it before may have removed it between opening and locking it.
                if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK)):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
