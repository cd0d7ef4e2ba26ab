"""Running many small tasks on a cluster through a bounded window of futures.

The scheduler never holds more than the window, whatever the number of tasks; a finished future is
released at once. Tasks are idempotent, so a worker's death costs a repetition and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

    ``name`` labels the stage in task keys (``name-index``) and in errors.

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
        key = f"{name}-{index}"
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


def run_one(client: Client, name: str, function: Callable[[Any, int], Result], job: Any) -> Result:
    """Run a single task on some worker and wait for it."""
    return next(run_tasks(client, name, function, job, [0]))


def _outcome(future: Any, name: str) -> Any:
    """The result of a finished task, or an error for people; the future is released either way."""
    try:
        return future.result()
    except ScoreShieldError:
        raise
    except KilledWorker as error:
        raise RunFailed(
            f"stage {name}: task {future.key} ended with its worker several times, most likely "
            "for lack of memory; give workers more memory and run the same command again"
        ) from error
    except Exception as error:
        raise RunFailed(
            f"stage {name}: task {future.key} failed with {type(error).__name__}: "
            f"{' '.join(str(error).split())}; "
            "finished blocks are kept, run the same command again to resume"
        ) from error
    finally:
        future.release()
