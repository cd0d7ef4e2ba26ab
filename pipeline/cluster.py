"""The cluster a release computes on, with the settings that its guarantees need."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.security import Security

from pipeline.config import Cluster

_SETTINGS: dict[str, Any] = {
    # Root tasks must not pile up on workers: each holds whole blocks.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.comm.retry.count": 5,
    # Nothing a task holds may reach the disk by itself, and a worker that could not spill would
    # only stall when paused: the plan keeps it below the limit, the nanny ends it above.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
    # Keeps task arguments and stack samples out of any diagnostics.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-length": 0,
    # No dashboard and no pages: an HTTP port outside TLS would show task names to the host.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # One thread of Zarr I/O is enough for one block a task.
    "distributed.nanny.pre-spawn-environ": {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ZARR_ASYNC__CONCURRENCY": "4",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    },
}


@contextmanager
def open_cluster(cluster: Cluster, scratch: Path) -> Iterator[Client]:
    """Start the configured cluster, yield a client, and end it.

    Connections use TLS with a certificate that lives as long as the cluster: whoever reaches a
    scheduler's port can run code, and on a shared host that is everybody.
    """
    with dask.config.set(_SETTINGS):
        security = Security.temporary()
        with (
            LocalCluster(
                n_workers=cluster.workers,
                threads_per_worker=cluster.threads_per_worker,
                memory_limit=int(cluster.memory_limit),
                processes=True,
                host="127.0.0.1",
                protocol="tls",
                security=security,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                local_directory=str(scratch),
                silence_logs=logging.CRITICAL,
            ) as local,
            Client(local, security=security) as client,
        ):
            yield client
