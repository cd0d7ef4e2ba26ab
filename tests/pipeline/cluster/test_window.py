"""Many tasks through a small window, and workers that die on the way.

Task functions are nested, so that they travel to the workers by value.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Future

from pipeline.cluster import open_cluster, window
from pipeline.cluster.patience import current_patience, patience
from pipeline.cluster.window import run_at_once, run_tasks
from pipeline.config.cluster import Cluster
from pipeline.errors import BudgetRefused, IntegrityFailure, RunFailed

WORKERS = 2


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The cluster of a release."""
    with open_cluster(Cluster(workers=WORKERS), tmp_path_factory.mktemp("scratch")) as connected:
        yield connected


def wait_for_release(client: Client) -> None:
    """Until neither client nor scheduler knows a task of this module any more."""
    deadline = time.monotonic() + 10
    while client.futures or client.cluster.scheduler.tasks:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_task_runs_once_and_the_window_stays_small(client: Client, tmp_path: Path) -> None:
    def touch(folder: str, index: int) -> int:
        with open(f"{folder}/{index}", "x"):
            return index * index

    most, results = 0, []
    for result in run_tasks(client, "touch", touch, str(tmp_path), range(60)):
        most = max(most, len(client.futures))
        results.append(result)
    assert sorted(results) == [index * index for index in range(60)]
    # A released future leaves the client's table a moment later.
    assert 1 < most <= 3 * WORKERS + 2
    wait_for_release(client)


def test_indices_are_drawn_only_as_the_window_allows(client: Client) -> None:
    drawn = []

    def indices() -> Iterator[int]:
        for index in range(10**9):
            drawn.append(index)
            yield index

    tasks = run_tasks(client, "lazy", lambda _job, index: index, None, indices())
    finished = [next(tasks) for _ in range(20)]
    assert len(set(finished)) == 20
    assert len(drawn) <= 20 + 3 * WORKERS
    tasks.close()
    wait_for_release(client)


def test_a_call_never_gets_the_results_of_an_earlier_one_of_its_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released results go a moment later; here those of the first call stay for good."""
    held: list[Future] = []

    def keeping(ask: Any) -> Any:
        def asked(*arguments: Any, **options: Any) -> Any:
            made = ask(*arguments, **options)
            futures = made if isinstance(made, list) else [made]
            held.extend(Future(future.key, client) for future in futures)
            return made

        return asked

    def own(job: int, index: int) -> tuple[int, int]:
        return job, index

    monkeypatch.setattr(client, "map", keeping(client.map))
    monkeypatch.setattr(client, "submit", keeping(client.submit))
    for job in (1, 2):
        assert run_at_once(client, "again", own, [job, job]) == [(job, 0), (job, 1)]
        assert sorted(run_tasks(client, "once more", own, job, range(2))) == [(job, 0), (job, 1)]
    for future in held:
        future.release()
    wait_for_release(client)


def test_no_tasks_are_no_results(client: Client) -> None:
    assert list(run_tasks(client, "none", lambda _job, index: index, None, [])) == []


@pytest.mark.parametrize("kind", [IntegrityFailure, BudgetRefused])
def test_an_error_for_people_arrives_as_it_is(client: Client, kind: type[Exception]) -> None:
    def fail(wanted: type[Exception], _index: int) -> None:
        raise wanted("block 3 is damaged")

    with pytest.raises(kind, match=r"^block 3 is damaged$"):
        list(run_tasks(client, "people", fail, kind, [3]))


def test_any_other_error_names_stage_and_task_on_one_line(client: Client) -> None:
    def fail(_job: None, _index: int) -> None:
        raise OSError("No space\nleft on device")

    with pytest.raises(RunFailed) as caught:
        list(run_tasks(client, "publish", fail, None, [17]))
    said = str(caught.value)
    assert "stage publish: task publish-17 failed with OSError: No space left on device" in said
    assert "run the same command again to resume" in said
    assert "\n" not in said


def test_a_task_that_fails_twice_is_repeated(client: Client, tmp_path: Path) -> None:
    def flaky(folder: str, index: int) -> int:
        attempt = len(os.listdir(folder))
        open(f"{folder}/{attempt}", "x").close()
        if attempt < 2:
            raise ConnectionError("the storage was away")
        return index

    assert list(run_tasks(client, "flaky", flaky, str(tmp_path), [5])) == [5]


def test_work_goes_on_after_a_worker_was_killed_in_the_middle_of_a_task(
    client: Client, tmp_path: Path
) -> None:
    def die_once(folder: str, index: int) -> int:
        marker = f"{folder}/died"
        if index == 4 and not os.path.exists(marker):
            open(marker, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    # Results that the dead worker held are asked for in vain; not for long here.
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        results = list(run_tasks(client, "die", die_once, str(tmp_path), range(12)))
    # A task that was finished on the dead worker may run twice; each is told once.
    assert sorted(results) == list(range(12))
    assert (tmp_path / "died").exists()


def test_a_task_that_always_ends_its_worker_ends_the_run(client: Client) -> None:
    scheduler = client.cluster.scheduler
    allowed, scheduler.allowed_failures = scheduler.allowed_failures, 0

    def die(_job: None, _index: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        with pytest.raises(RunFailed) as caught:
            list(run_tasks(client, "perturb", die, None, [8]))
    finally:
        scheduler.allowed_failures = allowed
    assert "stage perturb: task perturb-8 ended with its worker several times" in str(caught.value)
    assert "memory" in str(caught.value)
    assert allowed == 10


def stop_at(times: int) -> Any:
    """A task that stops its worker process, as a hung one is, the first ``times`` times."""

    def stop(folder: str, index: int) -> int:
        before = len(os.listdir(folder))
        if index == 3 and before < times:
            open(f"{folder}/{before}", "x").close()
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

    return stop


def test_a_worker_that_hangs_is_restarted_and_its_task_done_again(
    client: Client, tmp_path: Path
) -> None:
    with patience(2.0):
        results = run_at_once(client, "hang", stop_at(1), [str(tmp_path)] * 8)
    assert results == list(range(8))


def test_workers_that_are_busy_for_another_run_are_left_alone(
    client: Client, tmp_path: Path
) -> None:
    def wait(folder: str, _index: int) -> int:
        open(f"{folder}/{os.getpid()}", "x").close()
        while not os.path.exists(f"{folder}/end"):
            time.sleep(0.05)
        return os.getpid()

    scheduler = client.cluster.scheduler_address
    with Client(scheduler, security=client.security, set_as_default=False) as other:
        task = other.submit(wait, str(tmp_path), 0, key=f"perturb-0@{other.id}")
        while not any(tmp_path.iterdir()):
            time.sleep(0.05)
        assert window._restart_busy_workers(client)
        (tmp_path / "end").touch()
        assert (tmp_path / str(task.result())).exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_task_that_always_hangs_ends_the_run(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_START_SECONDS", 0.0)
    with (
        patience(1.0),
        pytest.raises(RunFailed, match="no worker gave a sign of life for 1 s") as caught,
    ):
        list(run_tasks(client, "perturb", stop_at(2), str(tmp_path), range(8)))
    assert "cluster.task_timeout" in str(caught.value)
    # The stopped worker seems idle by now: what is given to it is done once it is restarted.
    with patience(5.0):
        assert list(run_tasks(client, "after", lambda job, _: job, 5, [0])) == [5]


def test_signs_of_life_keep_a_long_task_from_being_taken_for_hung(
    client: Client, tmp_path: Path
) -> None:
    def slow(folder: str, index: int) -> int:
        open(f"{folder}/{time.time_ns()}", "x").close()
        time.sleep(1.5)
        return index

    with patience(0.5):
        heard = current_patience()
        beats = [threading.Timer(0.3 * beat, heard.hear) for beat in range(1, 12)]
        for timer in beats:
            timer.start()
        assert list(run_tasks(client, "slow", slow, str(tmp_path), [0])) == [0]
        for timer in beats:
            timer.cancel()
    assert len(os.listdir(tmp_path)) == 1


def test_a_tasks_own_timeout_is_an_error_and_no_hung_worker(client: Client) -> None:
    def fail(_job: None, _index: int) -> None:
        raise TimeoutError("the storage did not answer")

    with pytest.raises(RunFailed, match="failed with TimeoutError: the storage did not answer"):
        list(run_tasks(client, "publish", fail, None, [0]))


def test_a_scheduler_that_is_lost_ends_the_run(tmp_path: Path) -> None:
    dask_command = str(Path(sys.executable).with_name("dask"))
    address = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(address), "--no-dashboard"]
    scheduler = subprocess.Popen(
        [dask_command, "scheduler", "--host", "127.0.0.1", "--port", "0", *common],
        stderr=subprocess.DEVNULL,
    )
    worker = subprocess.Popen(
        [dask_command, "worker", "--host", "127.0.0.1", "--nthreads", "1", *common],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )

    def sleep(_job: None, index: int) -> int:
        time.sleep(0.05)
        return index

    try:
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
            Client(scheduler_file=str(address), timeout="30s") as lost,
        ):
            tasks = run_tasks(lost, "perturb", sleep, None, range(10**6))
            next(tasks)
            scheduler.kill()
            with pytest.raises(RunFailed, match="stage perturb: the connection to the scheduler"):
                list(tasks)
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
