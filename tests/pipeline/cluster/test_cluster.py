"""The cluster's settings that the guarantees need, seen from inside its workers."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster

SETTINGS = Cluster(workers=2, threads_per_worker=2)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def client(scratch: Path) -> Iterator[Client]:
    with open_cluster(SETTINGS, scratch) as connected:
        yield connected


def test_as_many_workers_threads_and_bytes_as_configured(client: Client) -> None:
    assert list(client.nthreads().values()) == [2, 2]
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    assert [worker["memory_limit"] for worker in workers] == [int(SETTINGS.memory_limit)] * 2


def test_every_connection_is_encrypted_and_local(client: Client) -> None:
    addresses = [client.scheduler.address, *client.nthreads()]
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses)


def test_no_pages_are_served(client: Client) -> None:
    scheduler = client.cluster.scheduler
    assert scheduler.http_application is None or not scheduler.http_application.applications


def test_workers_use_one_blas_thread_and_spill_nothing(client: Client) -> None:
    def inside(dask_worker: Any) -> dict[str, Any]:
        import threadpoolctl

        return {
            "blas": {pool["num_threads"] for pool in threadpoolctl.threadpool_info()},
            "spill": dask.config.get("distributed.worker.memory.spill"),
            "saturation": dask.config.get("distributed.scheduler.worker-saturation"),
            "retries": dask.config.get("distributed.comm.retry.count"),
            "profile": dask.config.get("distributed.worker.profile.enabled"),
            "zarr": os.environ["ZARR_ASYNC__CONCURRENCY"],
            "directory": dask_worker.local_directory,
        }

    for found in client.run(inside).values():
        assert found["blas"] <= {1}
        assert (found["spill"], found["profile"]) == (False, False)
        assert (found["saturation"], found["retries"], found["zarr"]) == (1.0, 3, "4")


def test_workers_keep_their_files_in_the_runs_scratch(client: Client, scratch: Path) -> None:
    folders = client.run(lambda dask_worker: dask_worker.local_directory)
    assert all(Path(folder).is_relative_to(scratch) for folder in folders.values())
    assert stat.S_ISDIR(scratch.stat().st_mode)


def test_settings_end_with_the_cluster(scratch: Path) -> None:
    before = dask.config.get("distributed.worker.memory.spill")
    with open_cluster(Cluster(workers=1), scratch):
        assert dask.config.get("distributed.worker.memory.spill") is False
    assert dask.config.get("distributed.worker.memory.spill") == before


def processes(client: Client) -> set[int]:
    """Process ids of the workers that answer."""
    found = client.run(os.getpid, on_error="return").values()
    return {process for process in found if isinstance(process, int)}


def test_ctrl_c_ends_this_process_alone_and_a_dead_worker_is_replaced(client: Client) -> None:
    """A terminal sends SIGINT to workers too; they leave it to the command."""
    before = client.run(os.getpid)
    for process in before.values():
        os.kill(process, signal.SIGINT)
    time.sleep(0.2)
    assert client.run(os.getpid) == before
    victim = next(iter(before.values()))
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not (fresh := processes(client) - set(before.values())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (replacement,) = fresh
    os.kill(replacement, signal.SIGINT)
    time.sleep(0.2)
    assert replacement in processes(client)


def test_an_interrupt_during_the_start_waits_for_its_end(scratch: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    before = set(psutil.Process().children(recursive=True))

    def interrupt_once_a_worker_starts() -> None:
        while set(psutil.Process().children(recursive=True)) <= before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt_once_a_worker_starts)
    sender.start()
    with (
        pytest.raises(KeyboardInterrupt),
        open_cluster(Cluster(workers=1), scratch),
    ):
        pytest.fail("the interrupt was lost")
    sender.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
