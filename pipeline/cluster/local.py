"""``local``: worker processes on this machine, for as long as the command runs."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from distributed.security import Security

from pipeline.cluster.settings import WORKER_ENVIRONMENT
from pipeline.config.cluster import Cluster

# A worker that is stopped in the middle must not end a command with its own traceback.
_SILENT = {
    "distributed.nanny.pre-spawn-environ": {
        **WORKER_ENVIRONMENT,
        "DASK_LOGGING": str(
            dict.fromkeys(("distributed", "tornado", "tornado.application", "asyncio"), "critical")
        ),
    }
}


@contextmanager
def open_local(cluster: Cluster, scratch: Path) -> Iterator[Client]:
    """Start workers, yield a client, and end them.

    Connections use TLS with a certificate that lives as long as the cluster: whoever reaches a
    scheduler's port can run code, and on a shared host that is everybody.
    """
    with dask.config.set(_SILENT), ExitStack() as opened:
        security = Security.temporary()
        with interrupts_deferred():
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
        yield client


@contextmanager
def interrupts_deferred() -> Iterator[None]:
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
