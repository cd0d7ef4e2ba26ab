"""The cluster's settings that the guarantees need, seen from inside its workers."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client, Scheduler

from pipeline.cluster import open_cluster
from pipeline.cluster.settings import in_force, settings_and_temporaries
from pipeline.config.cluster import Cluster
from pipeline.storage.durable import make_private

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


class TestTheSharedTemporaryFolder:
    """Dask's folder there may be somebody else's, with links to a curator's files."""

    @pytest.fixture
    def victims(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """Files that planted links point to, for commands that start now."""
        planted = tmp_path / "tmp" / "dask-scratch-space"
        planted.mkdir(parents=True)
        files = []
        for name in ("global.lock", "purge.lock"):
            files.append(tmp_path / f"of the curator, {name}")
            files[-1].write_text("precious")
            (planted / name).symlink_to(files[-1])
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        return files

    def test_a_local_cluster_leaves_it_alone(self, victims: list[Path], tmp_path: Path) -> None:
        scratch = make_private(tmp_path / "scratch")
        with open_cluster(Cluster(workers=1), scratch) as client:
            assert client.run_on_scheduler(in_force, {"temporary-directory": None}) == {
                "temporary-directory": str(scratch)
            }
            assert (scratch / "dask-scratch-space" / "global.lock").exists()
        assert [victim.read_text() for victim in victims] == ["precious"] * 2

    def test_a_scheduler_of_its_own_leaves_it_alone(self, victims: list[Path]) -> None:
        with settings_and_temporaries():
            folder = asyncio.run(scheduler_folder())
            shared = folder.parents[1]
            assert stat.S_IMODE(shared.stat().st_mode) == 0o700
        assert not shared.exists()
        assert [victim.read_text() for victim in victims] == ["precious"] * 2

    def test_what_it_is_for(self, victims: list[Path]) -> None:
        """The control: Dask by itself follows the links and empties the files."""
        with dask.config.set({"temporary-directory": None}):
            asyncio.run(scheduler_folder())
        assert "" in [victim.read_text() for victim in victims]


async def scheduler_folder() -> Path:
    """The folder of a scheduler that starts and ends."""
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        return Path(scheduler.local_directory)
