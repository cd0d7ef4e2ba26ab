"""Running many small tasks on a cluster through a bounded window of futures.

The scheduler never holds more than the window, whatever the number of tasks; a finished future is
released at once. Tasks are idempotent, so a worker's death costs a repetition and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from distributed import Client, as_completed
from distributed.scheduler import KilledWorker

from pipeline.errors import RunFailed
from scoreshield.errors import ScoreShieldError

Result = TypeVar("Result")

_TASKS_PER_THREAD = 3
_RETRIES = 3


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
        A task failed for a reason that is not the user's; the run can be resumed.
    ScoreShieldError
        As raised by the task.
    """
    waiting = iter(indices)
    window = _TASKS_PER_THREAD * max(1, sum(client.nthreads().values()))

    def submit(index: int) -> Any:
        key = _key(client, name, index)
        return client.submit(function, job, index, key=key, pure=False, retries=_RETRIES)

    running = as_completed([submit(index) for index in islice(waiting, window)])
    try:
        for future in running:
            result = _outcome(future, name)
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
                key=[_key(client, name, index) for index in indices],
                pure=False,
                retries=_RETRIES,
                **placed,
            )
        with _errors_for_people(name, f"{name}-*"):
            results: list[Result] = client.gather(futures)
    finally:
        for future in futures:
            future.release()
    order = [index for indices in _by_place(len(jobs), places).values() for index in indices]
    return [result for _, result in sorted(zip(order, results, strict=True), key=_first)]


def run_one(client: Client, name: str, function: Callable[[Any, int], Result], job: Any) -> Result:
    """Run a single task on some worker and wait for it."""
    return next(run_tasks(client, name, function, job, [0]))


def _outcome(future: Any, name: str) -> Any:
    """The result of a finished task, or an error for people; the future is released either way."""
    try:
        with _errors_for_people(name, future.key.partition("@")[0]):
            return future.result()
    finally:
        future.release()


@contextmanager
def _errors_for_people(name: str, task: str) -> Iterator[None]:
    """Turn what a task failed with into an error that says what to do."""
    try:
        yield
    except ScoreShieldError:
        raise
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


def _key(client: Client, name: str, index: int) -> str:
    """A task's own key: on a scheduler that others use too, no other run's task answers for it."""
    return f"{name}-{index}@{client.id}"


def _by_place(count: int, places: Sequence[str] | None) -> dict[str | None, list[int]]:
    """The indices of tasks by where they should run."""
    indices: dict[str | None, list[int]] = {}
    for index in range(count):
        indices.setdefault(None if places is None else places[index], []).append(index)
    return indices


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]
