"""What a worker says of itself before a run: how it is set up, and which files it sees.

Runs on workers. Nothing of the gallery is told but its digest, which stays with the curator.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import get_worker

from pipeline.cluster.settings import EVERYWHERE, WORKER, WORKER_ENVIRONMENT, in_force
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.project import block_cache
from pipeline.storage import blocks
from pipeline.storage.place import Place, write
from scoreshield.errors import ScoreShieldError


@dataclass(frozen=True)
class Question:
    """What every worker is asked.

    Attributes
    ----------
    folders : where the run writes, by configuration key; each holds a file ``name``
    name : file that this run put there, with ``content``, readable by its owner alone
    """

    folders: Mapping[str, Place]
    name: str
    content: bytes


@dataclass(frozen=True)
class Answer:
    """What one worker says.

    Attributes
    ----------
    host : name of its machine
    machine : what two processes share exactly if they see the same files under the same names
    user : number of the user it runs as
    clock : seconds since 1970
    settings : Dask's settings in force, by key
    environment : variables of its process
    scratch, scratch_free : folder of its own files, and bytes free there
    folders : what is wrong with each folder, or None, by configuration key
    """

    host: str
    machine: str
    user: int
    clock: float
    settings: dict[str, Any]
    environment: dict[str, str | None]
    scratch: str
    scratch_free: int
    folders: dict[str, str | None]


def answer(question: Question, index: int) -> Answer:
    """Describe this worker, and forget what it kept of earlier runs.

    In each folder that it sees rightly, a file ``NAME.INDEX`` is left for the asker to find.
    """
    _forget_earlier_runs()
    scratch = get_worker().local_directory
    return Answer(
        host=socket.gethostname(),
        machine=this_machine(),
        user=os.geteuid(),
        clock=time.time(),
        settings=in_force({**WORKER, **EVERYWHERE}),
        environment={name: os.environ.get(name) for name in WORKER_ENVIRONMENT},
        scratch=scratch,
        scratch_free=shutil.disk_usage(scratch).free,
        folders={
            key: _fault_of(folder, question, index) for key, folder in question.folders.items()
        },
    )


def read_gallery(path: str, _: int = 0) -> bytes | str:
    """The content digest of the gallery as this worker reads it, or what keeps it from reading."""
    try:
        return content_digest(open_gallery(path))
    except (OSError, ScoreShieldError) as error:
        return _one_line(error)


def this_machine() -> str:
    """The running kernel and the file systems that it shows this process."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel} {os.readlink('/proc/self/ns/mnt')}"
    except OSError:
        return f"unknown, process {os.getpid()}"


def source_digest() -> str:
    """SHA-256 over the Python files of both packages: a version number does not tell them apart."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in ("pipeline", "scoreshield"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _forget_earlier_runs() -> None:
    """A worker may outlive a run: a store of the same name may be another one."""
    blocks.forget_stores()
    block_cache.of_this_worker.clear()


def _fault_of(folder: Place, question: Question, index: int) -> str | None:
    """What keeps a worker from using a folder, or an object store, as the driver does."""
    try:
        content = (folder / question.name).read_bytes()
    except FileNotFoundError:
        return "another place of that name: the file that this run has just put there is missing"
    except (OSError, ScoreShieldError) as error:
        return f"a file of this run can't be read there ({_one_line(error)})"
    if content != question.content:
        return "holds another file than the one that this run has just put there"
    fault = _fault_of_owner(folder / question.name) if isinstance(folder, Path) else None
    if fault is not None:
        return fault
    try:
        write(folder / f"{question.name}.{index}", question.content)
    except (OSError, ScoreShieldError) as error:
        return f"nothing can be written there ({_one_line(error)})"
    return None


def _fault_of_owner(path: Path) -> str | None:
    """Why this worker would refuse a release key in a file that was written like this one."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        return (
            f"a file of this run belongs to user {status.st_uid} there, and the worker runs as "
            f"{os.geteuid()}, so it would refuse the release key"
        )
    if status.st_mode & 0o077:
        return (
            f"a file of mode 0600 has mode {stat.S_IMODE(status.st_mode):04o} there, so the worker "
            "would refuse the release key"
        )
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
