"""``address``: a scheduler that runs already, on this machine or another."""

from __future__ import annotations

import os
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client
from distributed.security import Security

from pipeline.config.cluster import AddressCluster, RemoteCluster, Tls
from pipeline.errors import ConfigurationError, RunFailed

_CONNECT_SECONDS = 30


@contextmanager
def open_address(cluster: AddressCluster, scratch: Path) -> Iterator[Client]:
    """Join the scheduler and wait for its workers; it goes on when this run has ended."""
    with connected(cluster.address, security_of(cluster.tls)) as client:
        wait_for_workers(client, cluster)
        yield client


def security_of(tls: Tls) -> Security:
    """Mutual TLS with the files of a configuration.

    Raises
    ------
    ConfigurationError
        A file is missing, or others can read the key.
    """
    for name in ("ca", "certificate", "key"):
        check_file(f"cluster.tls.{name}", getattr(tls, name), secret=name == "key")
    role = {"cert": str(tls.certificate), "key": str(tls.key)}
    return Security(
        require_encryption=True,
        tls_ca_file=str(tls.ca),
        **{f"tls_{role_name}_{part}": path for role_name in _ROLES for part, path in role.items()},
    )


_ROLES = ("client", "scheduler", "worker")


def check_file(key: str, path: Path, *, secret: bool) -> None:
    """Refuse a file that isn't there, and a secret one that others can read.

    A group may read a key that belongs to another user: Kubernetes mounts secrets that way.
    """
    try:
        with path.open("rb") as file:
            file.read(1)
        status = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"{key}: {path} can't be read ({error.strerror}); 'scoreshield cluster certificates "
            f"{path.parent}' makes certificates, 'cluster.tls' names those of a cluster that runs "
            "already. Nothing was spent"
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    others = 0o077 if status.st_uid == os.geteuid() else 0o007
    if secret and mode & others:
        raise ConfigurationError(
            f"{key}: {path} has mode {mode:04o}, expected 0600: whoever read it can read the "
            "gallery through the cluster. Make new certificates. Nothing was spent"
        )


@contextmanager
def connected(
    address: str, security: Security, seconds: float = _CONNECT_SECONDS
) -> Iterator[Client]:
    """A client of the scheduler at an address that should answer within some seconds.

    Raises
    ------
    RunFailed
        Nobody answers there, or not with a certificate of the same authority.
    """
    try:
        client = Client(address, security=security, timeout=seconds)
    except (OSError, ValueError) as error:
        raise RunFailed(
            f"cluster.address: the scheduler at {address} can't be joined "
            f"({_reason(error)}); see whether it runs, whether this machine "
            "reaches it, and whether its certificates are of the authority in cluster.tls.ca. "
            "Nothing was spent by this attempt"
        ) from error
    with client:
        yield client


def wait_for_workers(client: Client, cluster: RemoteCluster) -> None:
    """Wait until all workers are there.

    Raises
    ------
    RunFailed
        Fewer came in time.
    """
    deadline = time.monotonic() + cluster.wait
    while (found := len(client.scheduler_info(n_workers=-1)["workers"])) < cluster.workers:
        if time.monotonic() > deadline:
            raise RunFailed(
                f"cluster.workers: found {found} of {cluster.workers} after {cluster.wait:g} s; "
                "see why the others don't start, or raise cluster.wait. Nothing was spent by this "
                "attempt"
            )
        time.sleep(0.2)


def _reason(error: BaseException) -> str:
    """What TLS says, if it was TLS; what the error says otherwise."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__
    return " ".join(str(cause or error).split()) or type(error).__name__
