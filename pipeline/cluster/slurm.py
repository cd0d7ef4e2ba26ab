"""``slurm``: one job a worker, through dask-jobqueue; the scheduler runs with the command."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.security import Security

from pipeline.cluster.address import wait_for_workers
from pipeline.cluster.settings import NO_PAGES, write_settings
from pipeline.config.cluster import SlurmCluster
from pipeline.errors import ConfigurationError, RunFailed
from pipeline.storage.durable import make_private


@contextmanager
def open_slurm(cluster: SlurmCluster, scratch: Path) -> Iterator[Client]:
    """Submit the jobs, wait until all run, yield a client, and cancel them.

    TLS is made for this run alone: its files lie in ``scratch``, for the owner's eyes.
    """
    slurm_cluster = jobqueue().SLURMCluster
    if shutil.which("sbatch") is None:
        raise ConfigurationError(
            "cluster.kind: slurm needs the command sbatch, found none in PATH; run this on a "
            "machine that submits jobs. Nothing was spent"
        )
    with ExitStack() as opened:
        security = Security.temporary()
        try:
            jobs = opened.enter_context(
                slurm_cluster(
                    security=security,
                    scheduler_options={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                    shared_temp_directory=str(scratch),
                    silence_logs="critical",
                    **job_options(cluster, scratch),
                )
            )
            jobs.scale(jobs=cluster.workers)
            client = opened.enter_context(Client(jobs, security=security))
        except (OSError, RuntimeError, ValueError) as error:
            raise RunFailed(
                f"cluster: SLURM took no job ({' '.join(str(error).split())}); logs of jobs that "
                f"ran are in {scratch / 'jobs'}. Nothing was spent by this attempt"
            ) from error
        wait_for_workers(client, cluster)
        yield client


def job_options(cluster: SlurmCluster, scratch: Path) -> dict[str, Any]:
    """What dask-jobqueue is told of one job: one worker, with the settings of this package."""
    settings, jobs, local = (make_private(scratch / name) for name in ("dask", "jobs", "workers"))
    write_settings(settings)
    exports = {"DASK_CONFIG": str(settings), "DASK_TEMPORARY_DIRECTORY": str(local)}
    if "PYTHONPATH" in os.environ:
        exports["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return {
        "queue": cluster.partition,
        "account": cluster.account,
        "walltime": cluster.walltime,
        "interface": cluster.interface,
        "protocol": "tls",
        "cores": cluster.threads_per_worker,
        "processes": 1,
        "memory": f"{int(cluster.memory_limit)}B",
        "job_name": "scoreshield",
        "job_extra_directives": list(cluster.directives),
        "job_script_prologue": [
            "umask 077",
            *cluster.prologue,
            *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
        ],
        "local_directory": str(local),
        "log_directory": str(jobs),
        # dask-jobqueue rounds the limit it passes on to two decimals.
        "worker_extra_args": [*NO_PAGES, "--memory-limit", str(int(cluster.memory_limit))],
        "death_timeout": "60",
    }


def jobqueue() -> Any:
    """dask-jobqueue, without what it does to Ctrl-C.

    Its import has an interrupt end the process with exit code 0, and a job that was interrupted
    would pass for one that made its release.

    Raises
    ------
    ConfigurationError
        It is not installed.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        raise ConfigurationError(
            "cluster.kind: slurm needs dask-jobqueue; pip install 'scoreshield[slurm]'. Nothing "
            "was spent"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    return dask_jobqueue
