"""Checks of a cluster before anything is spent: is it the one that was planned for?

Workers are asked what software and settings they have and which files they see; everything that is
wrong is listed at once, one line a fault. Versions come first, through Dask's own protocol, since
everything after them is code that workers must have too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, wait

from pipeline.cluster.settings import EVERYWHERE, SCHEDULER, WORKER, WORKER_ENVIRONMENT, in_force
from pipeline.config.cluster import Cluster
from pipeline.errors import ConfigurationError, RunFailed, ScoreShieldError
from pipeline.quantities import show_bytes
from pipeline.run.run import Run
from pipeline.run.worker_report import (
    Answer,
    Question,
    answer,
    read_gallery,
    source_digest,
    this_machine,
)
from pipeline.storage.place import Place, write

CLOCK_TOLERANCE = 10.0
"""Seconds: certificates are valid for a time, and timeouts are counted on each machine."""
FREE_SCRATCH = 4 * 2**20
"""Bytes: nothing is spilled, so a worker's own files are small."""
_PATIENCE = 60.0
_READING_SPEED = 10e6
"""Bytes a second below which storage is given up on."""
_SOFTWARE = (
    *("python", "scoreshield", "numpy", "scipy", "zarr", "cryptography", "mpmath"),
    *("dask", "distributed", "msgpack", "cloudpickle", "tornado", "threadpoolctl"),
)
_SAME_SOFTWARE = "install the same versions there, or use the same image"
_NOTHING_SPENT = "Nothing was spent by this attempt."


@dataclass(frozen=True)
class Places:
    """What a run reads and writes.

    Attributes
    ----------
    folders : folders to write in, by configuration key
    gallery : where the gallery is
    gallery_digest : its content digest, as this process read it
    gallery_bytes : about how much there is to read
    """

    folders: Mapping[str, Place]
    gallery: Place
    gallery_digest: bytes
    gallery_bytes: int


def preflight(run: Run, client: Client, gallery_digest: bytes) -> None:
    """Check the cluster of a run; raises as :func:`check_cluster`."""
    folders: dict[str, Place] = {"private": run.folder.path, "output": run.config.output}
    if run.folder.elsewhere is not None:
        folders["blocks"] = run.folder.elsewhere
    places = Places(
        folders=folders,
        gallery=run.gallery.path,
        gallery_digest=gallery_digest,
        gallery_bytes=4 * run.gallery.n * run.gallery.d,
    )
    check_cluster(client, run.config.cluster, places)


def check_cluster(client: Client, cluster: Cluster, places: Places) -> None:
    """Refuse a cluster that is not as planned.

    Raises
    ------
    ConfigurationError
        Each fault on a line of its own: which machine, what was found, what was expected, what to
        do.
    RunFailed
        A worker went away, or did not answer in time.
    """
    _refuse(_version_faults(client))
    _refuse(_code_faults(client))
    workers = client.scheduler_info(n_workers=-1)["workers"]
    faults = _scheduler_faults(client) + _shape_faults(cluster, workers)
    with _question(places.folders, len(workers)) as question:
        asked = time.time()
        answers = _ask(client, "answer", answer, question, list(workers), _PATIENCE)
        for index, (address, found) in enumerate(answers.items()):
            who = f"worker {address} on {found.host}"
            faults += [f"{who}: {fault}" for fault in answer_faults(found, asked, time.time())]
            faults += [
                f"{who}: {fault}" for fault in _unseen(places.folders, question, found, index)
            ]
    _refuse(faults)
    _refuse(_gallery_faults(client, places, answers))


def answer_faults(found: Answer, asked: float, heard: float) -> list[str]:
    """What is wrong with one worker's own account.

    Parameters
    ----------
    asked, heard : when the question went out and when the answer was there, by this clock
    """
    faults = []
    apart = max(asked - found.clock, found.clock - heard, 0.0)
    if apart > CLOCK_TOLERANCE:
        faults.append(
            f"its clock is {apart:.0f} s apart from this machine's, expected at most "
            f"{CLOCK_TOLERANCE:.0f} s; synchronise both (NTP)"
        )
    faults += _setting_faults({**WORKER, **EVERYWHERE}, found.settings)
    faults += [
        f"found {name}={value or 'nothing'} in its environment, expected {WORKER_ENVIRONMENT[name]}"
        f"; {_START_RIGHT}"
        for name, value in found.environment.items()
        if value != WORKER_ENVIRONMENT[name]
    ]
    if found.scratch_free < FREE_SCRATCH:
        faults.append(
            f"found {show_bytes(found.scratch_free)} free in {found.scratch}, expected "
            f"{show_bytes(FREE_SCRATCH)}; make room, or start it with another --local-directory"
        )
    return faults + [
        f"{key}: {fault}; mount the same file system there, writable for the same user"
        for key, fault in found.folders.items()
        if fault is not None
    ]


_START_RIGHT = (
    "start it with 'scoreshield cluster worker CONFIG' or with deploy/dask/distributed.yaml"
)


def _setting_faults(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [
        f"found {key} = {found.get(key)!r}, expected {value!r}; {_START_RIGHT}"
        for key, value in expected.items()
        if found.get(key) != value
    ]


def _version_faults(client: Client) -> list[str]:
    """Software that differs: scheduler and workers unpack what this process packs."""
    try:
        found: Any = client.get_versions(check=False, packages=list(_SOFTWARE))
    except (OSError, ValueError) as error:
        raise RunFailed(
            f"the cluster did not tell its versions ({error}); run the same command again. "
            f"{_NOTHING_SPENT}"
        ) from error
    own = found["client"]["packages"]
    others = {"scheduler": found["scheduler"], **found["workers"]}
    return [
        f"{_called(who)}: found {name} {versions['packages'].get(name) or 'missing'}, expected "
        f"{own[name]} as on this machine; {_SAME_SOFTWARE}"
        for who, versions in others.items()
        for name in _SOFTWARE
        if versions["packages"].get(name) != own[name]
    ]


def _code_faults(client: Client) -> list[str]:
    """Other source code under the same version, or none that runs."""
    own = source_digest()
    found: Any = client.run(source_digest, on_error="return")
    try:
        found["scheduler"] = client.run_on_scheduler(source_digest)
    except Exception as error:
        found["scheduler"] = error
    faults = []
    for who, code in found.items():
        if isinstance(code, Exception):
            reason = f"{type(code).__name__}: {' '.join(str(code).split())}"
            faults.append(f"{_called(who)}: can't run scoreshield ({reason}); {_SAME_SOFTWARE}")
        elif code != own:
            faults.append(
                f"{_called(who)}: found other source code of scoreshield under the same version, "
                f"expected this machine's; {_SAME_SOFTWARE}"
            )
    return faults


def _called(who: str) -> str:
    return who if who == "scheduler" else f"worker {who}"


def _scheduler_faults(client: Client) -> list[str]:
    expected = {**SCHEDULER, **EVERYWHERE}
    found = client.run_on_scheduler(in_force, expected)
    return [
        f"scheduler: {fault}".replace("cluster worker", "cluster scheduler")
        for fault in _setting_faults(expected, found)
    ]


def _shape_faults(cluster: Cluster, workers: Mapping[str, Any]) -> list[str]:
    """Threads and memory other than planned: a plan's figures are for these alone."""
    faults = []
    for address, worker in workers.items():
        who = f"worker {address}"
        threads, memory = worker["nthreads"], worker["memory_limit"]
        if threads != cluster.threads_per_worker:
            faults.append(
                f"{who}: found {threads} threads, expected cluster.threads_per_worker "
                f"{cluster.threads_per_worker}; start it with --nthreads "
                f"{cluster.threads_per_worker}, or change the configuration"
            )
        if not memory or memory < int(cluster.memory_limit):
            faults.append(
                f"{who}: found a memory limit of {show_bytes(memory) if memory else 'nothing'}, "
                f"expected at least cluster.memory_limit {show_bytes(int(cluster.memory_limit))}; "
                "start it with more, or lower the limit in the configuration"
            )
        if not worker["nanny"]:
            faults.append(
                f"{who}: found no nanny, expected one that holds it to its memory limit; start it "
                "with --nanny"
            )
    return faults


@contextmanager
def _question(folders: Mapping[str, Place], workers: int) -> Iterator[Question]:
    """A file of a new name in each folder, for as long as workers are asked about it."""
    name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_hex(16).encode()
    try:
        for folder in folders.values():
            write(folder / name, content)
        yield Question(folders, name, content)
    finally:
        for folder in folders.values():
            for path in (folder / name, *(folder / f"{name}.{index}" for index in range(workers))):
                with contextlib.suppress(OSError, ScoreShieldError):
                    path.unlink() if isinstance(path, Path) else path.delete()


def _unseen(
    folders: Mapping[str, Place], question: Question, found: Answer, index: int
) -> Iterator[str]:
    """Folders in which a worker's file is not to be found from here, or is another user's."""
    for key, folder in folders.items():
        path = folder / f"{question.name}.{index}"
        if found.folders[key] is not None:
            continue
        if not path.exists():
            yield (
                f"{key}: what it writes in {folder} does not arrive here; mount the same file "
                "system on both machines"
            )
        elif isinstance(path, Path) and path.stat().st_uid != os.geteuid():
            yield (
                f"{key}: what it writes belongs to user {path.stat().st_uid}, expected "
                f"{os.geteuid()}; run workers as the same user as this command"
            )


def _gallery_faults(client: Client, places: Places, answers: Mapping[str, Answer]) -> Iterator[str]:
    """One worker of each other machine reads the whole gallery: another copy has other content."""
    readers = {found.machine: address for address, found in answers.items()}
    readers.pop(this_machine(), None)
    patience = _PATIENCE + places.gallery_bytes / _READING_SPEED
    addresses = list(readers.values())
    seen = _ask(client, "gallery", read_gallery, places.gallery, addresses, patience)
    for address, digest in seen.items():
        if digest != places.gallery_digest:
            what = digest if isinstance(digest, str) else "found other content"
            yield (
                f"worker {address} on {answers[address].host}: gallery {places.gallery}: {what}, "
                "expected the gallery as this machine reads it; mount the same file system there"
            )


def _ask(
    client: Client, name: str, function: Any, question: Any, workers: list[str], patience: float
) -> dict[str, Any]:
    """Each worker's answer, from a task of its own.

    Raises
    ------
    ConfigurationError
        A worker failed to answer.
    RunFailed
        One went away or did not answer in time.
    """
    token = secrets.token_hex(4)
    futures = {
        address: client.submit(
            function,
            question,
            index,
            key=f"preflight-{name}-{index}-{token}",
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )
        for index, address in enumerate(workers)
    }
    try:
        if futures:
            with contextlib.suppress(TimeoutError):
                wait(list(futures.values()), timeout=patience)
        silent = [address for address, future in futures.items() if not future.done()]
        if silent:
            raise RunFailed(
                f"preflight: no answer from {', '.join(silent)} within {patience:.0f} s; see "
                "whether these workers still run and reach the storage, then run the same command "
                f"again. {_NOTHING_SPENT}"
            )
        _refuse(
            f"worker {address}: failed to answer ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); see its log"
            for address, future in futures.items()
            if (error := future.exception()) is not None
        )
        return {address: future.result() for address, future in futures.items()}
    finally:
        for future in futures.values():
            future.release()


def _refuse(faults: Any) -> None:
    """One error for all faults, if there are any."""
    lines = list(faults)
    if lines:
        here = f"the cluster is not what this release was planned for (asked from {_here()}):"
        raise ConfigurationError("\n".join([here, *lines, _NOTHING_SPENT]))


def _here() -> str:
    return socket.gethostname()
