"""What lies in a folder, seen without following links; or below a URL, where there are none.

A link could name a file outside a release, and a pipe would keep its reader waiting for ever.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from pipeline.errors import IntegrityFailure
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place
from scoreshield.printable import printable

LARGEST_DOCUMENT = 16 * 2**20
"""Bytes of a manifest, or of an array's metadata, that nothing published comes near."""


def read_plain_file(path: Place) -> bytes:
    """Content of a regular file that holds a document.

    Raises
    ------
    OSError
        It can't be read.
    IntegrityFailure
        There is something else: a link, a folder, a pipe; or it is too large to be one.
    """
    if isinstance(path, Path) and not stat.S_ISREG(path.lstat().st_mode):
        raise IntegrityFailure(f"{path}: found no regular file, which is all that a release holds")
    size = path.stat().st_size if isinstance(path, Path) else path.size() or 0
    if size > LARGEST_DOCUMENT:
        raise IntegrityFailure(
            f"{path}: found {size} bytes, expected at most {LARGEST_DOCUMENT}; this is "
            "none that publication wrote"
        )
    return path.read_bytes()


def plain_file_sizes(root: Place, files: Collection[str]) -> dict[str, int]:
    """Bytes of those of the named files that are regular ones, relative to ``root``."""
    if isinstance(root, ObjectPath):
        stored = root.files()
        return {name: stored[name] for name in files if name in stored}
    sizes = {}
    for name in files:
        with contextlib.suppress(OSError):
            found = (root / name).lstat()
            if stat.S_ISREG(found.st_mode):
                sizes[name] = found.st_size
    return sizes


def plain_file_faults(
    root: Place, files: Collection[str], unread: Collection[str] = ()
) -> list[str]:
    """What a folder lacks, and what it holds beyond plain files and the folders they are in.

    Parameters
    ----------
    files : names of the plain files that are expected, relative to ``root``
    unread : names of folders that may be there and are not looked into

    Raises
    ------
    IntegrityFailure
        A folder can't be listed.
    """
    expected, closed = set(files), set(unread)
    folders = closed | {parent for name in (*expected, *closed) for parent in _parents(name)}
    present, faults = (
        _objects(root, expected, folders, closed)
        if isinstance(root, ObjectPath)
        else _files(root, expected, folders, closed)
    )
    missing = [f"{name} is missing" for name in sorted(expected - present)]
    # A link or a foreign file often explains what is missing.
    return [printable(fault) for fault in (*sorted(faults), *missing)]


def _objects(
    root: ObjectPath, expected: set[str], folders: set[str], closed: set[str]
) -> tuple[set[str], list[str]]:
    """Which of the expected objects are there, and which faults are."""
    present, faults = set(), []
    for name, size in root.files().items():
        if name in expected:
            present.add(name)
        # A console marks a folder with an empty object of its name.
        elif not (name in folders and size == 0) and closed.isdisjoint(_parents(name)):
            faults.append(f"{name} does not belong there")
    return present, faults


def _files(
    root: Path, expected: set[str], folders: set[str], closed: set[str]
) -> tuple[set[str], list[str]]:
    """The same of a folder."""
    present, faults = set(), []
    for name, entry in _entries(root, folders - closed):
        if entry.is_symlink():
            faults.append(f"{name} is a symbolic link")
        elif entry.is_file(follow_symlinks=False) and name in expected:
            present.add(name)
        elif not (entry.is_dir(follow_symlinks=False) and name in folders):
            faults.append(f"{name} does not belong there")
    return present, faults


def _entries(root: Path, folders: Collection[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in ``root``, and in those of ``folders`` that are no links, by relative name."""
    waiting = [""]
    while waiting:
        within = waiting.pop()
        try:
            with os.scandir(root / within) as listed:
                entries = list(listed)
        except OSError as error:
            raise IntegrityFailure(
                f"{root / within}: can't be listed ({error.strerror})"
            ) from error
        for entry in entries:
            name = f"{within}/{entry.name}" if within else entry.name
            yield name, entry
            if name in folders and entry.is_dir(follow_symlinks=False):
                waiting.append(name)


def _parents(name: str) -> Iterator[str]:
    parent = name.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]
