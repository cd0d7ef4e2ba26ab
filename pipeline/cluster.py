"""The cluster a release computes on, with the settings that its guarantees need."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
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
    # A receipt that a killed worker held is asked for at its dead address until these run out; with
    # the defaults (30 s a try) one dead worker would stop a run for three minutes.
    "distributed.comm.retry.count": 3,
    "distributed.comm.retry.delay.min": "100ms",
    "distributed.comm.retry.delay.max": "1s",
    "distributed.comm.timeouts.connect": "5s",
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
    # BLAS runs in the task's own thread; four threads of Zarr I/O read the chunks of a panel.
    "distributed.nanny.pre-spawn-environ": {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ZARR_ASYNC__CONCURRENCY": "4",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        # A worker that is stopped in the middle must not end a command with its own traceback.
        "DASK_LOGGING": str(
            dict.fromkeys(("distributed", "tornado", "tornado.application", "asyncio"), "critical")
        ),
    },
}


@contextmanager
def open_cluster(cluster: Cluster, scratch: Path) -> Iterator[Client]:
    """Start the configured cluster, yield a client, and end it.

    Connections use TLS with a certificate that lives as long as the cluster: whoever reaches a
    scheduler's port can run code, and on a shared host that is everybody.
    """
    with dask.config.set(_SETTINGS), ExitStack() as opened:
        security = Security.temporary()
        with _interrupts_deferred():
            local = opened.enter_context(
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
                )
            )
            client = opened.enter_context(Client(local, security=security))
        # A blockwise projection is thousands of short steps, each of which waits for the one
        # before; by default a client holds messages back for 10 ms, longer than most steps take.
        client.scheduler_comm.interval = 0.001
        yield client


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM once a cluster has started; its processes never see Ctrl-C.

    A terminal sends SIGINT to every process of a command. Workers that it ends print tracebacks,
    and a cluster that it finds half started can't be closed. Threads and processes inherit the
    mask, those that replace a dead worker too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # The first process to start would start this, which lifts the mask.
    resource_tracker.ensure_running()
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda got, _frame: came.append(got)) for number in signals]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
