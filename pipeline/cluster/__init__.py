"""The cluster a release computes on, with the settings that its guarantees need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from pipeline.cluster.address import open_address
from pipeline.cluster.kubernetes import open_kubernetes
from pipeline.cluster.local import open_local
from pipeline.cluster.settings import SETTINGS as SETTINGS
from pipeline.cluster.settings import settings_and_temporaries
from pipeline.cluster.slurm import open_slurm
from pipeline.config.cluster import Cluster

KINDS: dict[str, Callable[[Any, Path], AbstractContextManager[Client]]] = {
    "local": open_local,
    "address": open_address,
    "slurm": open_slurm,
    "kubernetes": open_kubernetes,
}
"""What opens each kind of cluster: its section and a private folder in, a client out."""


@contextmanager
def open_cluster(cluster: Cluster, scratch: Path) -> Iterator[Client]:
    """Start or join the configured cluster, yield a client, and leave it as it was found.

    Parameters
    ----------
    scratch : private folder of the run, which every worker of another machine sees as well

    Raises
    ------
    ConfigurationError
        Something that the kind needs is missing: a package, a file, a program.
    RunFailed
        The cluster can't be reached, or not all of its workers came in time.
    """
    with settings_and_temporaries(scratch), KINDS[cluster.kind](cluster, scratch) as client:
        # A blockwise projection is thousands of short steps, each of which waits for the one
        # before; by default a client holds messages back for 10 ms, longer than most steps take.
        scheduler: Any = client.scheduler_comm
        scheduler.interval = 0.001
        yield client
