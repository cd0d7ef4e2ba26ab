"""Dask's settings that the guarantees need, on every kind of cluster.

Where this package starts the processes, they get these settings from it. Others are started with
``deploy/dask/distributed.yaml``, which says the same, or by ``scoreshield cluster scheduler`` and
``worker``; preflight compares either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import yaml

SCHEDULER: dict[str, Any] = {
    # Root tasks must not pile up on workers: each holds whole blocks.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.allowed-failures": 10,
    # No pages: an HTTP port outside TLS would show task names to the network.
    "distributed.scheduler.http.routes": [],
}
"""Read by the scheduler."""

WORKER: dict[str, Any] = {
    # Nothing a task holds may reach the disk by itself, and a worker that could not spill would
    # only stall when paused: the plan keeps it below the limit, the nanny ends it above.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
    # Keeps task arguments and stack samples out of any diagnostics.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.http.routes": [],
}
"""Read by workers and their nannies."""

EVERYWHERE: dict[str, Any] = {
    # A receipt that a killed worker held is asked for at its dead address until these run out; with
    # the defaults (30 s a try) one dead worker would stop a run for three minutes.
    "distributed.comm.retry.count": 3,
    "distributed.comm.retry.delay.min": "100ms",
    "distributed.comm.retry.delay.max": "1s",
    "distributed.comm.timeouts.connect": "5s",
    "distributed.admin.log-length": 0,
}
"""Read by every process, this one too."""

WORKER_ENVIRONMENT: dict[str, str] = {
    # BLAS runs in the task's own thread; four threads of Zarr I/O read the chunks of a panel.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ZARR_ASYNC__CONCURRENCY": "4",
    # Arrays of a block's size are made and freed by the hundred. Kept, their memory serves the next
    # block; given back, as Dask has it, the operating system clears every page anew (perturb takes
    # 1.4 times as long). Larger arrays still come and go.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Environment that a nanny gives its worker."""

SETTINGS: dict[str, Any] = {
    **SCHEDULER,
    **WORKER,
    **EVERYWHERE,
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
}


NO_PAGES = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
"""Arguments of Dask's commands. Without pages it opens a port outside TLS all the same, on which
there is nothing: on no interface but this machine's own."""


@contextmanager
def settings_and_temporaries(folder: Path | None = None) -> Iterator[None]:
    """Dask under these settings, with its own files where no other user can reach them.

    By default Dask shares a folder of a known name in the system's temporary folder with every user
    of the machine, and empties what links there point to.

    Parameters
    ----------
    folder : private; by default a new one, removed at the end
    """
    with ExitStack() as opened:
        if folder is None:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="scoreshield-")))
        opened.enter_context(dask.config.set({**SETTINGS, "temporary-directory": str(folder)}))
        yield


def nested_settings() -> dict[str, Any]:
    """The settings as a file of Dask's configuration spells them."""
    tree: dict[str, Any] = {}
    for key, value in SETTINGS.items():
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return tree


def write_settings(folder: Path) -> Path:
    """Write ``distributed.yaml`` for processes that name the folder in ``DASK_CONFIG``."""
    path = folder / "distributed.yaml"
    path.write_text(yaml.safe_dump(nested_settings(), sort_keys=False), encoding="utf-8")
    return path


def in_force(keys: dict[str, Any]) -> dict[str, Any]:
    """What this process has for some settings, by key; None where it has nothing."""
    return {key: dask.config.get(key, default=None) for key in keys}
