"""Running many small tasks on a cluster through a bounded window of futures.

The scheduler never holds more than the window, whatever the number of tasks; a finished future is
released at once. Tasks are idempotent, so a worker's death costs a repetition and nothing else. A
worker that hangs is restarted once; where that does not help, the run ends resumable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, TypeVar

from distributed import Client, as_completed
from distributed.scheduler import KilledWorker

from pipeline.cluster.patience import current_patience
from pipeline.errors import RunFailed
from scoreshield.errors import ScoreShieldError

Result = TypeVar("Result")

_calls = count()
_TASKS_PER_THREAD = 3
_RETRIES = 3
_ANSWER_SECONDS = 60.0
"""Seconds that a scheduler may take to say who is at work, and to restart workers."""
_START_SECONDS = 60.0
"""Seconds that a restarted worker gets to be there, besides the run's patience."""


def run_tasks(
    client: Client,
    name: str,
    function: Callable[[Any, int], Result],
    job: Any,
    indices: Iterable[int],
) -> Iterator[Result]:
    """Yield ``function(job, index)`` for every index, in order of completion.

    ``name`` labels the stage in task keys and in errors.

    Raises
    ------
    RunFailed
        A task failed for a reason that is not the user's, or no worker gave a sign of life for as
        long as the run's patience lasts; the run can be resumed.
    ScoreShieldError
        As raised by the task.
    """
    waiting, call = iter(indices), next(_calls)
    window = _TASKS_PER_THREAD * max(1, sum(client.nthreads().values()))

    def submit(index: int) -> Any:
        key = _key(client, name, index, call)
        return client.submit(function, job, index, key=key, pure=False, retries=_RETRIES)

    running = as_completed([submit(index) for index in islice(waiting, window)])
    try:
        while not running.is_empty():
            future = _awaited(client, name, lambda: anext(running))
            result = _outcome(client, future, name)
            for index in islice(waiting, 1):
                running.add(submit(index))
            yield result
    finally:
        # A failed task must not answer for a later one of its name.
        for future in list(running.futures):
            future.release()


def run_at_once(
    client: Client,
    name: str,
    function: Callable[[Any, int], Result],
    jobs: Sequence[Any],
    places: Sequence[str] | None = None,
) -> list[Result]:
    """``function(jobs[index], index)`` for every index, in the order of the jobs.

    For a number of tasks that the cluster's threads set, not the size of the data: all of them are
    handed over in one message and their results fetched in one, which takes a fraction of the time.

    Parameters
    ----------
    places : address of the worker on which each task should rather run

    Raises
    ------
    As :func:`run_tasks`.
    """
    futures: list[Any] = []
    call = next(_calls)
    try:
        for place, indices in _by_place(len(jobs), places).items():
            # The place is a preference: a worker that has died must not hold its tasks up.
            placed: dict[str, Any] = (
                {} if place is None else {"workers": [place], "allow_other_workers": True}
            )
            futures += client.map(
                function,
                [jobs[index] for index in indices],
                indices,
                key=[_key(client, name, index, call) for index in indices],
                pure=False,
                retries=_RETRIES,
                **placed,
            )
        with _errors_for_people(name, f"{name}-*"):
            results: list[Result] = _awaited(client, name, lambda: client.gather(futures), futures)
    finally:
        for future in futures:
            future.release()
    order = [index for indices in _by_place(len(jobs), places).values() for index in indices]
    return [result for _, result in sorted(zip(order, results, strict=True), key=_first)]


def _outcome(client: Client, future: Any, name: str) -> Any:
    """The result of a finished task, or an error for people; the future is released either way."""
    try:
        with _errors_for_people(name, future.key.partition("@")[0]):
            return _awaited(client, name, future.result)
    finally:
        future.release()


def _awaited(
    client: Client,
    name: str,
    what: Callable[[], Awaitable[Any]],
    futures: Sequence[Any] = (),
) -> Any:
    """The outcome of ``what``, called in the client's loop; workers that hang are restarted once.

    Parameters
    ----------
    futures : whose end is a sign of life, where ``what`` waits for several

    Raises
    ------
    RunFailed
        No worker gave a sign of life, also after the restart.
    """

    async def outcome() -> tuple[Any, Exception | None]:
        # A task may end with a TimeoutError of its own.
        try:
            return await what(), None
        except Exception as error:
            return None, error

    patience = current_patience()
    patience.hear()
    restarted, ended = False, 0
    while True:
        try:
            result, error = client.sync(outcome, callback_timeout=patience.left)
        except TimeoutError:
            # A sign of life may have come while this was waiting.
            before, ended = ended, sum(future.done() for future in futures)
            if ended > before:
                restarted = False
                patience.hear()
            if patience.left == 0:
                if restarted or not _restart_busy_workers(client):
                    raise _hung(name, patience.seconds) from None
                restarted = True
                patience.hear(grace=_START_SECONDS)
        else:
            if error is None:
                return result
            raise error if client.status == "running" else _lost(name) from error


def _restart_busy_workers(client: Client) -> bool:
    """Restart every worker that has a task of this client, or a result nobody could fetch from it.

    On a scheduler that others use too, a worker that is busy for them alone is no business of ours.
    False where the scheduler doesn't answer.
    """
    try:
        busy = {
            address
            for asked in (client.processing, client.has_what)
            for address, tasks in client.sync(asked, callback_timeout=_ANSWER_SECONDS).items()
            if any(str(task).endswith(_owner(client)) for task in tasks)
        }
        client.sync(
            lambda: client.restart_workers(list(busy), raise_for_error=False),
            callback_timeout=_ANSWER_SECONDS,
        )
    except (OSError, TimeoutError, CancelledError):
        return False
    return True


def _lost(name: str) -> RunFailed:
    return RunFailed(
        f"stage {name}: the connection to the scheduler was lost; finished blocks are kept, "
        "run the same command again to resume"
    )


def _hung(name: str, seconds: float) -> RunFailed:
    return RunFailed(
        f"stage {name}: no worker gave a sign of life for {seconds:g} s, and restarting them did "
        "not help; finished blocks are kept. Look at the workers and their storage and run the "
        "same command again, with a larger cluster.task_timeout if a single step takes longer"
    )


@contextmanager
def _errors_for_people(name: str, task: str) -> Iterator[None]:
    """Turn what a task failed with into an error that says what to do."""
    try:
        yield
    except ScoreShieldError:
        raise
    except CancelledError as error:
        raise _lost(name) from error
    except KilledWorker as error:
        raise RunFailed(
            f"stage {name}: task {task} ended with its worker several times, most likely "
            "for lack of memory; give workers more memory and run the same command again"
        ) from error
    except Exception as error:
        raise RunFailed(
            f"stage {name}: task {task} failed with {type(error).__name__}: "
            f"{' '.join(str(error).split())}; "
            "finished blocks are kept, run the same command again to resume"
        ) from error


def _key(client: Client, name: str, index: int, call: int) -> str:
    """A task's own key: no other run's task on a shared scheduler answers for it, and none of an
    earlier call of the same name, whose result the scheduler may not have dropped yet."""
    return f"{name}-{index}@{call}{_owner(client)}"


def _owner(client: Client) -> str:
    """What the keys of a client's tasks end in."""
    return f"@{client.id}"


def _by_place(count: int, places: Sequence[str] | None) -> dict[str | None, list[int]]:
    """The indices of tasks by where they should run."""
    indices: dict[str | None, list[int]] = {}
    for index in range(count):
        indices.setdefault(None if places is None else places[index], []).append(index)
    return indices


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]
