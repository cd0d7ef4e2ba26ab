"""Writing small files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from pipeline.errors import ConfigurationError


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` by ``content``: temporary file, fsync, rename, fsync of the folder."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
