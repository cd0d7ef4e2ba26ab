"""Clients of object stores, and Zarr's store on one.

The endpoint, region and credentials come from the environment alone. What doesn't answer, or
answers with a server's error, is asked again until a deadline (:func:`deadline`).
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import zarr.storage

from pipeline.errors import ConfigurationError
from pipeline.storage.object_errors import errors_for_people, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

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


def _explained(name: str) -> Any:
    """A request of Zarr's own store for one object, with errors for people."""
    request = getattr(zarr.storage.ObjectStore, name)

    async def explained(self: ZarrObjects, key: str, *arguments: Any, **named: Any) -> Any:
        with errors_for_people(f"{self.url}/{key}"):
            return await request(self, key, *arguments, **named)

    return explained


def _explained_listing(name: str) -> Any:
    """A listing of Zarr's own store, with errors for people."""
    listing = getattr(zarr.storage.ObjectStore, name)

    async def explained(self: ZarrObjects, *prefix: str) -> AsyncGenerator[str, None]:
        with errors_for_people("/".join((self.url, *prefix))):
            async for item in listing(self, *prefix):
                yield item

    return explained


class ZarrObjects(zarr.storage.ObjectStore[Any]):
    """Zarr's own store on obstore, whose errors are those of :func:`errors_for_people`."""

    def __init__(self, store: Any, *, read_only: bool = False, url: str = "") -> None:
        super().__init__(store, read_only=read_only)
        self.url = url

    def with_read_only(self, read_only: bool = False) -> ZarrObjects:
        return ZarrObjects(self.store, read_only=read_only, url=self.url)

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        with errors_for_people(self.url):
            return await super().get_partial_values(prototype, key_ranges)

    get, exists, getsize = map(_explained, ("get", "exists", "getsize"))
    set, set_if_not_exists, delete = map(_explained, ("set", "set_if_not_exists", "delete"))
    list, list_prefix, list_dir = map(_explained_listing, ("list", "list_prefix", "list_dir"))
