"""Locks that end with their holder: one process at a time in a folder.

They are the operating system's own (``flock``), so a process that is killed leaves none. A folder
under whose lock nothing was made goes again without a trace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pipeline.errors import RunFailed, ScoreShieldError
from pipeline.storage.durable import make_private
from pipeline.storage.layout import LOCK


@contextlib.contextmanager
def locked_folder(folder: Path, *, wait: bool) -> Iterator[None]:
    """Make a private folder and lock it; it goes again where the body leaves nothing in it.

    Parameters
    ----------
    wait : for whoever holds it; where that is not wanted, BlockingIOError is raised at once
    """
    make, flags = partial(make_private, folder), os.O_RDWR | os.O_CREAT
    with locked(folder / LOCK, make, flags, wait=wait):
        try:
            yield
        finally:
            if os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()


@contextlib.contextmanager
def locked(
    path: Path, make: Callable[[], object], flags: int = os.O_RDONLY, *, wait: bool
) -> Iterator[None]:
    """Lock a file or folder that its holder may remove or rename.

    Parameters
    ----------
    make : makes what is missing before it is opened
    flags : how it is opened
    wait : as for :func:`locked_folder`
    """
    descriptor = _acquired(path, make, flags, wait)
    try:
        yield
    finally:
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


def _acquired(path: Path, make: Callable[[], object], flags: int, wait: bool) -> int:
    while True:
        make()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # Whoever held it before may have removed it between opening and locking it.
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
