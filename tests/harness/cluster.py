"""A cluster of worker threads in this process, for tests in which no worker meets a fault.

It has the product's own settings and passes the product's own preflight; what it lacks is only what
such tests do not ask of it: processes of their own, which take seconds to start, and TLS.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from pipeline.cluster import KINDS
from pipeline.cluster.settings import WORKER_ENVIRONMENT
from pipeline.config.cluster import Cluster

WORKERS, MEMORY = 2, 8 * 2**30


class ThreadCluster:
    """Opens one cluster at the first use and keeps it for those that follow."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._cluster: LocalCluster | None = None
        self._open_processes = KINDS["local"]

    @contextmanager
    def instead_of_processes(self) -> Iterator[None]:
        """Within, clusters of the kind ``local`` are this one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(KINDS, "local", self.open)
            yield

    @contextmanager
    def open(self, cluster: Cluster, scratch: Path) -> Iterator[Client]:
        """Take the place of what opens a local cluster, under the settings that its caller has set.

        Workers with several threads are left to the product: their number is part of a plan.
        """
        if cluster.threads_per_worker != 1:
            with self._open_processes(cluster, scratch) as client:
                yield client
            return
        with pytest.MonkeyPatch.context() as patch:
            for name, value in WORKER_ENVIRONMENT.items():
                patch.setenv(name, value)
            with Client(self._started()) as client:
                yield client
            self._settle()

    def _started(self) -> LocalCluster:
        if self._cluster is None:
            scratch = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="workers-"))
            self._cluster = self._opened.enter_context(
                LocalCluster(
                    n_workers=WORKERS,
                    threads_per_worker=1,
                    memory_limit=MEMORY,
                    processes=False,
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False, "local_directory": scratch},
                    local_directory=scratch,
                    silence_logs=logging.CRITICAL,
                    # What preflight asks for; nobody is at this address, and nobody calls there.
                    nanny="inproc://none",
                )
            )
        return self._cluster

    def _settle(self) -> None:
        """Wait for tasks that nobody waits for any more: a run's own workers would end with it."""
        assert self._cluster is not None
        deadline = time.monotonic() + 60
        while any(worker.state.executing_count for worker in self._cluster.workers.values()):
            assert time.monotonic() < deadline, "a task did not end"
            time.sleep(0.001)

    def close(self) -> None:
        """End the cluster, if there is one."""
        if self._cluster is not None:
            for worker in self._cluster.workers.values():
                worker.nanny = None
        self._opened.close()


THREADS = ThreadCluster()
"""The one of this process; ``tests/conftest.py`` ends it."""
