"""Where things are kept: a path of a file system, or a URL of an object store, by one name.

Everything that may lie in either is addressed through here. On a file system nothing changes for
having an alternative: the functions do what the pipeline has always done there.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import zarr.storage

from pipeline.errors import ConfigurationError
from pipeline.storage.durable import make_file, write_atomically
from pipeline.storage.object_path import SCHEMES, ObjectPath

Place = Path | ObjectPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_url(location: str) -> bool:
    """Whether a text is meant as a URL, of whatever scheme."""
    return _URL.match(location) is not None


def place_of(location: str | os.PathLike[str] | ObjectPath) -> Place:
    """The place that a path or URL names; a ``file://`` URL is a path.

    Raises
    ------
    ConfigurationError
        A URL of another scheme, or one that holds credentials.
    """
    if isinstance(location, ObjectPath):
        return location
    text = os.fspath(location)
    found = _URL.match(text)
    if found is None:
        return Path(text)
    scheme = found[1].lower()
    if scheme == "file":
        return _local(text)
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"expected a path or a URL that starts with {', '.join(f'{s}://' for s in SCHEMES)} or "
            f"file://, found one that starts with {scheme}://"
        )
    return ObjectPath.parse(text)


def resolved(location: str | os.PathLike[str] | ObjectPath) -> Place:
    """The place that a location leads to, symbolic links followed."""
    place = place_of(location)
    return place if isinstance(place, ObjectPath) else Path(os.path.realpath(place))


def lies_in(place: Place, folder: Place) -> bool:
    """Whether a place is a folder or lies below it."""
    if isinstance(place, ObjectPath):
        return place.is_relative_to(folder)
    return isinstance(folder, Path) and place.is_relative_to(folder)


def one_below(folder: Place, name: str) -> list[Place]:
    """The files of a name in the folders that lie in ``folder``, in order."""
    if isinstance(folder, ObjectPath):
        files = (folder / child / name for child in sorted(folder.names()))
        return [file for file in files if file.size() is not None]
    return [*sorted(folder.glob(f"*/{name}"))]


def zarr_store(place: Place, *, read_only: bool) -> Any:
    """The Zarr store at a place: the one function that knows how Zarr reaches it."""
    if isinstance(place, ObjectPath):
        return place.zarr_store(read_only=read_only)
    return zarr.storage.LocalStore(place, read_only=read_only)


def write(place: Place, content: bytes, mode: int = 0o600) -> None:
    """Make or replace a small file so that nobody sees half of it; its folder must be there."""
    if isinstance(place, ObjectPath):
        place.write(content)
    else:
        write_atomically(place, content, mode)


def create(place: Place, content: bytes) -> None:
    """Make a small file unless there is one, so that of several that try one succeeds.

    Raises
    ------
    FileExistsError
        There is one already.
    """
    if isinstance(place, ObjectPath):
        place.create(content)
    else:
        make_file(place, content)


def stored_files(place: Place) -> dict[str, int]:
    """All files of a store, by their names relative to it, with their bytes."""
    if isinstance(place, ObjectPath):
        return place.files()
    return {
        str(file.relative_to(place)): file.stat().st_size
        for file in place.rglob("*")
        if not file.is_dir()
    }


def delete(place: Place) -> None:
    """Remove a folder and all that is in it, as far as possible on a file system."""
    if isinstance(place, ObjectPath):
        place.delete()
    else:
        shutil.rmtree(place, ignore_errors=True)


def _local(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise ConfigurationError(
            "expected file:///PATH, found a file URL with a host, a query or a fragment"
        )
    return Path(unquote(parts.path))
