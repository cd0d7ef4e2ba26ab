"""Where something lies in an object store: what ``pathlib.Path`` is for a file system.

Addressed by URL (``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``), reached through obstore. The
endpoint, region and credentials come from the environment alone, as the provider's own tools read
them (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...), so that no configuration, URL, log or
manifest ever holds a secret.

There are no folders: a name is a prefix, one PUT makes an object that is durable and complete, and
an upload that was cut short is never seen. What doesn't answer, or answers with a server's error,
is asked again until a deadline (:func:`pipeline.storage.object_store.deadline`); then the run has
failed and can be resumed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zarr.storage

from pipeline.errors import ConfigurationError
from pipeline.storage.object_errors import errors_for_people
from pipeline.storage.object_store import ZarrObjects, client
from scoreshield.printable import printable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs")
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._=+-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")


@dataclass(frozen=True)
class ObjectPath:
    """An object, or what lies below a prefix.

    Attributes
    ----------
    root : scheme and bucket, ``s3://BUCKET``
    key : names joined by ``/``; empty for the bucket itself
    """

    root: str
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> ObjectPath:
        """The place that a URL names.

        Raises
        ------
        ConfigurationError
            It holds credentials or a query, or names no bucket. The URL is not repeated where it
            may hold a secret.
        """
        scheme, _, rest = url.partition("://")
        if "@" in rest:
            raise ConfigurationError(
                f"expected {scheme}://BUCKET/PREFIX, found a user name or password in the URL; "
                "credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            )
        if "?" in rest or "#" in rest:
            raise ConfigurationError(
                f"expected {scheme}://BUCKET/PREFIX, found a query or fragment in the URL; "
                "endpoint, region and credentials come from the environment (AWS_ENDPOINT_URL, "
                "AWS_REGION, ...)"
            )
        bucket, *names = rest.rstrip("/").split("/")
        if not _BUCKET.fullmatch(bucket) or not all(_SEGMENT.fullmatch(name) for name in names):
            raise ConfigurationError(
                f"expected {scheme}://BUCKET/PREFIX of letters, digits and . _ = + -, found "
                f"{printable(url)!r}"
            )
        return cls(f"{scheme}://{bucket}", "/".join(names))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last name."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """What the last name lies in."""
        return ObjectPath(self.root, self.key.rpartition("/")[0])

    def is_relative_to(self, other: object) -> bool:
        """Whether this is ``other`` or lies below it."""
        if not isinstance(other, ObjectPath) or self.root != other.root:
            return False
        return not other.key or f"{self.key}/".startswith(f"{other.key}/")

    def exists(self) -> bool:
        """Whether an object of that name is there, or any below it."""
        return self.size() is not None or next(self._listed(), None) is not None

    def size(self) -> int | None:
        """Bytes of the object; None where there is none."""
        try:
            return int(self._head()["size"])
        except FileNotFoundError:
            return None

    def stamp(self) -> tuple[str, int, float]:
        """Entity tag, bytes and time of the object: another one where it was replaced.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        found = self._head()
        return str(found["e_tag"]), int(found["size"]), found["last_modified"].timestamp()

    def read_bytes(self) -> bytes:
        """Content of the object; FileNotFoundError where there is none."""
        import obstore

        with errors_for_people(str(self)):
            return bytes(obstore.get(self._store, self.key).bytes())

    def read_text(self) -> str:
        """Content of the object as text in UTF-8."""
        return self.read_bytes().decode("utf-8")

    def write(self, content: bytes) -> None:
        """Make or replace the object, in one PUT."""
        import obstore

        with errors_for_people(str(self)):
            obstore.put(self._store, self.key, content, use_multipart=False)

    def create(self, content: bytes) -> None:
        """Make the object, unless there is one: of several that try, one succeeds.

        Raises
        ------
        FileExistsError
            There is one already, with other content.
        ConfigurationError
            The object store can't write under that condition.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        try:
            with errors_for_people(str(self)):
                obstore.put(self._store, self.key, content, mode="create")
        except (AlreadyExistsError, FileExistsError):
            # An answer that was lost on the way made the client ask again.
            if self.read_bytes() != content:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self)) from None
        except NotSupportedError as error:
            raise ConfigurationError(
                f"{self}: this object store does not support conditional writes (If-None-Match), "
                "without which two runs could publish one release; use another one"
            ) from error

    def files(self) -> dict[str, int]:
        """Objects below this prefix: their names relative to it, and their bytes."""
        return dict(self._listed())

    def names(self) -> set[str]:
        """What lies immediately below this prefix, objects and prefixes alike."""
        import obstore

        with errors_for_people(str(self)):
            listed = obstore.list_with_delimiter(self._store, self.key or None)
            paths = [*listed["common_prefixes"], *(item["path"] for item in listed["objects"])]
        return {self._relative(path).partition("/")[0] for path in paths} - {""}

    def delete(self) -> None:
        """Delete the object and every one below it."""
        import obstore

        keys = [self.key, *(f"{self.key}/{name}" for name in self.files())]
        with errors_for_people(str(self)), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, keys)

    def zarr_store(self, *, read_only: bool) -> zarr.storage.ObjectStore[Any]:
        """The Zarr store at this prefix."""
        # A store of its own: in one of the whole bucket Zarr would make a group of every parent.
        return ZarrObjects(client(str(self)), read_only=read_only, url=str(self))

    def _head(self) -> Any:
        import obstore

        with errors_for_people(str(self)):
            return obstore.head(self._store, self.key)

    def _listed(self) -> Iterator[tuple[str, int]]:
        import obstore

        with errors_for_people(str(self)):
            for batch in obstore.list(self._store, prefix=self.key or None):
                for item in batch:
                    # A console marks a folder with an empty object of the folder's own name.
                    if name := self._relative(item["path"]):
                        yield name, int(item["size"])

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.key).removeprefix("/")

    @property
    def _store(self) -> ObjectStore:
        return client(self.root)
