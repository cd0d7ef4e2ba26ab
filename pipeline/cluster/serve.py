"""The scheduler and the workers of ``kind: address``, as services: Dask's own commands.

They get their address, certificates, threads and memory from the configuration of the release, and
Dask's settings from this package, so that a run finds the cluster it was planned for.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.address import security_of
from pipeline.cluster.settings import NO_PAGES, settings_and_temporaries
from pipeline.config.cluster import AddressCluster, Cluster
from pipeline.errors import ConfigurationError


def run_scheduler(cluster: Cluster, listen: str | None) -> None:
    """Run the scheduler until it is ended.

    Parameters
    ----------
    listen : address of this machine to listen at; by default the host of ``cluster.address``
    """
    from distributed.cli.dask_scheduler import main

    section = _with_address(cluster)
    host, port = section.host_and_port
    arguments = ["--host", listen or host, "--port", str(port), *_common(section)]
    with settings_and_temporaries():
        main(arguments, standalone_mode=False)


def run_workers(cluster: Cluster, count: int, listen: str | None, scratch: Path | None) -> None:
    """Run workers of this machine, each with its nanny, until they are ended.

    Parameters
    ----------
    listen : address of this machine at which the others reach it; by default Dask looks for one
    scratch : folder for the workers' own files; by default a private one, removed at the end
    """
    from distributed.cli.dask_worker import main

    section = _with_address(cluster)
    arguments = [section.address, "--nworkers", str(count)]
    arguments += ["--nthreads", str(section.threads_per_worker)]
    arguments += ["--memory-limit", str(int(section.memory_limit)), *_common(section)]
    if listen is not None:
        arguments += ["--host", listen]
    if scratch is not None:
        arguments += ["--local-directory", str(scratch)]
    with settings_and_temporaries():
        main(arguments, standalone_mode=False)


def _with_address(cluster: Cluster) -> AddressCluster:
    if isinstance(cluster, AddressCluster):
        return cluster
    raise ConfigurationError(
        f"cluster.kind: expected address, found {cluster.kind}; the other kinds start their "
        "scheduler and workers themselves"
    )


def _common(section: AddressCluster) -> list[str]:
    """TLS alone, and no dashboard."""
    security_of(section.tls)
    tls = section.tls
    files = ["--tls-ca-file", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key]
    return ["--protocol", "tls", *NO_PAGES, *map(str, files)]
