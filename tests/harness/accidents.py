"""Commands that meet accidents, each in a process of its own.

A moment is ``STAGE:DONE`` (once that many units of a stage are finished), ``STAGE+`` (half a second
after its start) or a step of :mod:`tests.harness.steps` (before it begins; ``after NAME`` once it
has ended), or ``half a store``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import progress
from pipeline.cli import main as cli
from pipeline.storage import blocks
from tests.harness import steps
from tests.harness.cluster import THREADS
from tests.harness.command import Ended

_FORKED = multiprocessing.get_context("forkserver")
# What takes longest to import is there in every process that starts, as in a command of its own.
_FORKED.set_forkserver_preload(["pipeline.run.release", "pipeline.run.stages", "pipeline.cli.main"])


def run_with_accidents(
    folder: Path, accidents: dict[str, str], *arguments: str, threads: bool, **environment: str
) -> Ended:
    """Run a command in which each accident happens at its moment.

    Parameters
    ----------
    threads : its workers are threads, for accidents that meet the driver or its disk
    """
    with tempfile.TemporaryDirectory() as written:
        outputs = [str(Path(written) / name) for name in ("out", "err")]
        process = _FORKED.Process(
            target=_command, args=(folder, accidents, arguments, threads, environment, outputs)
        )
        process.start()
        process.join(400)
        assert process.exitcode is not None, "the command did not end"
        return Ended(process.exitcode, *(Path(name).read_text() for name in outputs))


def _command(
    folder: Path,
    accidents: dict[str, str],
    arguments: tuple[str, ...],
    threads: bool,
    environment: dict[str, str],
    outputs: list[str],
) -> None:
    for stream, name in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(folder)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", **environment}
    sys.argv = ["scoreshield", *arguments]
    moments = Moments(accidents)
    real_reporter = progress.standard_reporter

    @contextmanager
    def reporter() -> Iterator[Any]:
        with real_reporter() as reporting:
            yield progress.Tee(reporting, moments)

    with (
        pytest.MonkeyPatch.context() as patch,
        THREADS.instead_of_processes() if threads else nullcontext(),
    ):
        steps.watch(patch, moments.reach, lambda step: moments.reach(f"after {step}"))
        patch.setattr(progress, "standard_reporter", reporter)
        codec = blocks.Crc32cCodec

        def with_half_a_store(*given: Any, **named: Any) -> Any:
            moments.reach("half a store")
            return codec(*given, **named)

        patch.setattr(blocks, "Crc32cCodec", with_half_a_store)
        try:
            cli.main()
        finally:
            THREADS.close()


def busy_worker() -> psutil.Process:
    """The worker process of this command's cluster that is computing."""
    children = psutil.Process().children(recursive=True)
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    for worker in workers:
        worker.cpu_percent()
    time.sleep(0.05)
    return max(workers, key=lambda worker: worker.cpu_percent())


def kill_worker() -> None:
    busy_worker().kill()


def stop_worker() -> None:
    busy_worker().suspend()


def kill_driver() -> None:
    psutil.Process().kill()


def half_destroy_the_key() -> None:
    for key in Path().glob("private/runs/*/release.key"):
        key.write_bytes(bytes(key.stat().st_size))
    kill_driver()


def fill_disk() -> None:
    # In small pieces, until not even an empty file fits: its name needs room too.
    with suppress(OSError), Path("disk/filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def make_output_read_only() -> None:
    # Refused as long as a worker has a file open for writing.
    command = ["mount", "-o", "remount,ro", str(Path("disk").resolve())]
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        time.sleep(0.01)


def kill_scheduler() -> None:
    psutil.Process(int(os.environ["SCHEDULER"])).kill()


ACCIDENTS: dict[str, Callable[[], None]] = {
    accident.__name__: accident
    for accident in (
        kill_worker,
        stop_worker,
        kill_driver,
        half_destroy_the_key,
        fill_disk,
        make_output_read_only,
        kill_scheduler,
    )
}


class Moments(progress.Tee):
    """A reporter that lets an accident happen, once, when its moment has come."""

    def __init__(self, accidents: dict[str, str]) -> None:
        super().__init__()
        self._accidents, self._stage = dict(accidents), ""

    def reach(self, moment: str) -> None:
        accident = self._accidents.pop(moment, None)
        if accident is not None:
            print(json.dumps({"accident": accident, "at": moment}), file=sys.stderr, flush=True)
            ACCIDENTS[accident]()

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage = stage
        self.reach(f"{stage}:0")
        threading.Timer(0.5, self.reach, [f"{stage}+"]).start()

    def advance(self, done: int, **figures: Any) -> None:
        self.reach(f"{self._stage}:{done}")
