"""Where something lies in an object store: what ``pathlib.Path`` is for a file system.

Addressed by URL (``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``), reached through obstore. The
endpoint, region and credentials come from the environment alone, as the provider's own tools read
them (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...), so that no configuration, URL, log or
manifest ever holds a secret.

There are no folders: a name is a prefix, one PUT makes an object that is durable and complete, and
an upload that was cut short is never seen. What doesn't answer, or answers with a server's error,
is asked again until a deadline (:func:`deadline`); then the run has failed and can be resumed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import zarr.storage

from pipeline.errors import ConfigurationError, RunFailed
from scoreshield.errors import ScoreShieldError
from scoreshield.printable import printable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Item = TypeVar("Item")

SCHEMES = ("s3", "gs")
DEADLINE = "SCORESHIELD_STORE_DEADLINE"
"""Environment variable: seconds until a request that keeps failing is given up."""
_DEFAULT_DEADLINE = 60.0
_MOST_RETRIES = 10
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._=+-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ENVIRONMENT = ("AWS_", "GOOGLE_", DEADLINE)
_DENIED = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken"
    r"|\b401 Unauthorized|\b403 Forbidden"
)
_LOOPBACK = re.compile(r"http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/.*)?")


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
        import obstore

        try:
            with told(str(self)):
                return int(obstore.head(self._store, self.key)["size"])
        except FileNotFoundError:
            return None

    def stamp(self) -> tuple[str, int, float]:
        """Entity tag, bytes and time of the object: another one where it was replaced.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        import obstore

        with told(str(self)):
            found = obstore.head(self._store, self.key)
        return str(found["e_tag"]), int(found["size"]), found["last_modified"].timestamp()

    def read_bytes(self) -> bytes:
        """Content of the object; FileNotFoundError where there is none."""
        import obstore

        with told(str(self)):
            return bytes(obstore.get(self._store, self.key).bytes())

    def _content(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self.read_bytes()
        return None

    def read_text(self) -> str:
        """Content of the object as text in UTF-8."""
        return self.read_bytes().decode("utf-8")

    def write(self, content: bytes) -> None:
        """Make or replace the object, in one PUT."""
        import obstore

        with told(str(self)):
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
            with told(str(self)):
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

        with told(str(self)):
            listed = obstore.list_with_delimiter(self._store, self.key or None)
            paths = [*listed["common_prefixes"], *(item["path"] for item in listed["objects"])]
        return {self._relative(path).partition("/")[0] for path in paths} - {""}

    def delete(self) -> None:
        """Delete the object and every one below it."""
        import obstore

        keys = [self.key, *(f"{self.key}/{name}" for name in self.files())]
        with told(str(self)), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, keys)

    def zarr_store(self, *, read_only: bool) -> zarr.storage.ObjectStore[Any]:
        """The Zarr store at this prefix."""
        # A store of its own: in one of the whole bucket Zarr would make a group of every parent.
        store = _client(str(self), _environment())
        return _ZarrObjects(store, read_only=read_only, url=str(self))

    def _listed(self) -> Iterator[tuple[str, int]]:
        import obstore

        with told(str(self)):
            for batch in obstore.list(self._store, prefix=self.key or None):
                for item in batch:
                    # A console marks a folder with an empty object of the folder's own name.
                    if name := self._relative(item["path"]):
                        yield name, int(item["size"])

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.key).removeprefix("/")

    @property
    def _store(self) -> ObjectStore:
        return _client(self.root, _environment())


def deadline() -> float:
    """Seconds until a request that keeps failing is given up.

    Raises
    ------
    ConfigurationError
        The environment says something that is no number of seconds.
    """
    named = os.environ.get(DEADLINE, str(_DEFAULT_DEADLINE))
    try:
        seconds = float(named)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 240:
        # A retried request carries the signature of the first, which ages.
        raise ConfigurationError(f"{DEADLINE}: expected seconds, at most 240, found {named!r}")
    return seconds


def _environment() -> tuple[tuple[str, str], ...]:
    """What a client is made from: another environment is another client."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)))


@lru_cache(maxsize=32)
def _client(url: str, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    """One client a URL and process, safe for many threads: it keeps its connections."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigurationError(
            f"{url}: object stores need obstore, which is not installed: "
            "pip install 'scoreshield[s3]'"
        ) from error
    seconds = deadline()
    try:
        return from_url(
            url,
            client_options={
                "allow_http": _plain_http_allowed(),
                "connect_timeout": timedelta(seconds=min(5.0, seconds)),
                # One answer that never comes must leave time to ask again.
                "timeout": timedelta(seconds=seconds / 2),
            },
            retry_config={
                "max_retries": _MOST_RETRIES,
                "retry_timeout": timedelta(seconds=seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
        )
    except (BaseError, ValueError) as error:
        raise ConfigurationError(
            f"{url}: can't be addressed ({_first_line(error)}); check the variables AWS_* or "
            "GOOGLE_* of the environment"
        ) from error


def _plain_http_allowed() -> bool:
    """Without TLS a gallery would cross the network in the clear: on this machine alone."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if not endpoint.startswith("http://"):
        return False
    if "@" in endpoint or not urlsplit(endpoint).hostname:
        raise ConfigurationError(
            "AWS_ENDPOINT_URL: expected http(s)://HOST:PORT, found something else; credentials "
            "belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if _LOOPBACK.fullmatch(endpoint) or os.environ.get("AWS_ALLOW_HTTP") == "true":
        return True
    raise ConfigurationError(
        "AWS_ENDPOINT_URL: expected https://, found http:// to another machine, which would send "
        "private records unencrypted; AWS_ALLOW_HTTP=true allows it on a network that you trust"
    )


@contextlib.contextmanager
def told(place: str) -> Iterator[None]:
    """Turn an object store's errors into errors for people, on one line and without a secret.

    Raises
    ------
    FileNotFoundError
        There is no such object.
    ConfigurationError
        There is no such bucket, or the credentials are not accepted.
    RunFailed
        The object store does not answer, or answers with an error.
    """
    try:
        yield
    except ScoreShieldError:
        raise
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _no_bucket(place) from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
    except Exception as error:
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        if isinstance(error, AlreadyExistsError | NotSupportedError) or not isinstance(
            error, BaseError
        ):
            raise
        text = str(error)
        if "NoSuchBucket" in text:
            raise _no_bucket(place) from None
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if denied or _DENIED.search(text):
            raise ConfigurationError(
                f"{place}: the object store refuses access{_code(text)}; check the credentials in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, "
                "AWS_REGION) and the bucket's policy"
            ) from None
        raise RunFailed(
            f"{place}: the object store failed ({_first_line(error)}); finished work is kept, run "
            "the same command again once it answers"
        ) from None


def _no_bucket(place: str) -> ConfigurationError:
    return ConfigurationError(
        f"{place}: there is no such bucket; make it, or check the name and AWS_ENDPOINT_URL"
    )


def _first_line(error: Exception) -> str:
    """What an error says, without the answer's body and without what a URL may carry."""
    text = str(error).partition("\n")[0].partition(": <")[0]
    return printable(re.sub(r"//[^/@\s]*@", "//", text).strip()) + _code(str(error))


def _code(text: str) -> str:
    """The code in the body of an answer, which says more than the status."""
    found = re.search(r"<Code>([A-Za-z]+)</Code>", text)
    return f", {found[1]}" if found else ""


class _ZarrObjects(zarr.storage.ObjectStore[Any]):
    """Zarr's own store on obstore, whose errors are those of :func:`told`."""

    def __init__(self, store: Any, *, read_only: bool = False, url: str = "") -> None:
        super().__init__(store, read_only=read_only)
        self._url = url

    def with_read_only(self, read_only: bool = False) -> _ZarrObjects:
        return _ZarrObjects(self.store, read_only=read_only, url=self._url)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        with told(f"{self._url}/{key}"):
            return await super().get(key, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        with told(self._url):
            return await super().get_partial_values(prototype, key_ranges)

    async def exists(self, key: str) -> bool:
        with told(f"{self._url}/{key}"):
            return bool(await super().exists(key))

    async def set(self, key: str, value: Any) -> None:
        with told(f"{self._url}/{key}"):
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        with told(f"{self._url}/{key}"):
            await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        with told(f"{self._url}/{key}"):
            await super().delete(key)

    async def getsize(self, key: str) -> int:
        with told(f"{self._url}/{key}"):
            return int(await super().getsize(key))

    def list(self) -> AsyncGenerator[str, None]:
        return _told_all(self._url, super().list())

    def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        return _told_all(f"{self._url}/{prefix}", super().list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        return _told_all(f"{self._url}/{prefix}", super().list_dir(prefix))


async def _told_all(place: str, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
    with told(place):
        async for item in items:
            yield item
