"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import ConfigurationError


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` by ``content``: temporary file, fsync, rename, fsync of the folder."""
    with replacing(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.chmod(file.fileno(), mode)
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, its owner's alone, that becomes ``path`` once the body has written it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def making(path: Path) -> Iterator[Path]:
    """An empty file, its owner's alone, that becomes ``path`` once the body has filled it.

    A link, unlike a rename, never replaces what another process has made: of several one succeeds.

    Raises
    ------
    FileExistsError
        There is one already.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(temporary)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
        sync(path.parent)


def make_file(path: Path, content: bytes) -> None:
    """Make a small file, unless there is one; raises as :func:`making`."""
    with making(path) as file:
        file.write_bytes(content)
        sync(file)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(
    folder: Path, *, file_mode: int | None = None, folder_mode: int | None = None
) -> None:
    """Make all that is in a folder survive a power cut, with these modes where some are given."""
    for within, _, names in os.walk(folder, topdown=False):
        for path, mode in [(Path(within, name), file_mode) for name in names] + [
            (Path(within), folder_mode)
        ]:
            if mode is not None:
                path.chmod(mode)
            sync(path)


def make_private(folder: Path) -> Path:
    """Make a folder that only its owner can enter; folders above it get their usual modes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        # Whoever owns it can open it again, or replace what is in it.
        raise ConfigurationError(
            f"the private folder {folder} belongs to user {owner}, this process runs as "
            f"{os.geteuid()}; name another folder, or change its owner"
        )
    folder.chmod(0o700)
    return folder
