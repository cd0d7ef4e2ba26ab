"""Clients of object stores, and Zarr's store on one.

The endpoint, region and credentials come from the environment alone. What doesn't answer, or
answers with a server's error, is asked again until a deadline (:func:`deadline`).
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import zarr.storage

from pipeline.errors import ConfigurationError
from pipeline.storage.object_errors import errors_for_people, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Item = TypeVar("Item")

DEADLINE = "SCORESHIELD_STORE_DEADLINE"
"""Environment variable: seconds until a request that keeps failing is given up."""
_DEFAULT_DEADLINE = 60.0
_MOST_RETRIES = 10
_ENVIRONMENT = ("AWS_", "GOOGLE_", DEADLINE)
_LOOPBACK = re.compile(r"http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/.*)?")


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


def client(url: str) -> ObjectStore:
    """The client of a URL, safe for many threads: it keeps its connections.

    Raises
    ------
    ConfigurationError
        The environment says what no client can be made from, or obstore is not installed.
    """
    named = (item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    return _client(url, tuple(sorted(named)))


@lru_cache(maxsize=32)
def _client(url: str, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    """One client a URL, environment and process."""
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
            f"{url}: can't be addressed ({first_line(error)}); check the variables AWS_* or "
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


class ZarrObjects(zarr.storage.ObjectStore[Any]):
    """Zarr's own store on obstore, whose errors are those of :func:`errors_for_people`."""

    def __init__(self, store: Any, *, read_only: bool = False, url: str = "") -> None:
        super().__init__(store, read_only=read_only)
        self._url = url

    def with_read_only(self, read_only: bool = False) -> ZarrObjects:
        return ZarrObjects(self.store, read_only=read_only, url=self._url)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        with errors_for_people(f"{self._url}/{key}"):
            return await super().get(key, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        with errors_for_people(self._url):
            return await super().get_partial_values(prototype, key_ranges)

    async def exists(self, key: str) -> bool:
        with errors_for_people(f"{self._url}/{key}"):
            return bool(await super().exists(key))

    async def set(self, key: str, value: Any) -> None:
        with errors_for_people(f"{self._url}/{key}"):
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        with errors_for_people(f"{self._url}/{key}"):
            await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        with errors_for_people(f"{self._url}/{key}"):
            await super().delete(key)

    async def getsize(self, key: str) -> int:
        with errors_for_people(f"{self._url}/{key}"):
            return int(await super().getsize(key))

    def list(self) -> AsyncGenerator[str, None]:
        return _listed(self._url, super().list())

    def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        return _listed(f"{self._url}/{prefix}", super().list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        return _listed(f"{self._url}/{prefix}", super().list_dir(prefix))


async def _listed(place: str, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
    with errors_for_people(place):
        async for item in items:
            yield item
