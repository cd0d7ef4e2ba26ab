"""The command line, with accidents: ``command_with_faults.py MOMENT=ACCIDENT ... -- ARGUMENTS``.

A process of its own, so that exit code and messages are those of the real command. A moment is
``STAGE:DONE`` (once that many units of a stage are finished), ``STAGE+`` (half a second after its
start) or the name of a step in ``STEPS`` (before it begins; ``after NAME`` once it has ended).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline import progress
from pipeline.cli import main as cli
from pipeline.ledger import Ledger
from pipeline.run import release, stages
from pipeline.run.run import RunFolder
from pipeline.storage import blocks

STEPS = [
    ("reserve", Ledger, "reserve"),
    ("key", release, "create_key"),
    ("key", release, "store_key"),
    ("commit_key", Ledger, "commit_key"),
    ("record_start", RunFolder, "record_start"),
    ("half a store", blocks, "Crc32cCodec"),
    ("project", stages, "project"),
    ("manifest", release, "finish"),
    ("commit", Ledger, "commit"),
    ("destroy_key", release, "destroy_key"),
]


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
        self._accidents, self._stage = accidents, ""

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


def watch(moments: Moments, moment: str, place: Any, name: str) -> None:
    real = getattr(place, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        moments.reach(moment)
        result = real(*arguments, **named)
        moments.reach(f"after {moment}")
        return result

    setattr(place, name, watched)


def main() -> None:
    split = sys.argv.index("--")
    moments = Moments(dict(part.split("=") for part in sys.argv[1:split]))
    for moment, place, name in STEPS:
        watch(moments, moment, place, name)
    real_reporter = progress.standard_reporter

    @contextmanager
    def reporter() -> Iterator[Any]:
        with real_reporter() as reporting:
            yield progress.Tee(reporting, moments)

    progress.standard_reporter = reporter
    sys.argv = ["scoreshield", *sys.argv[split + 1 :]]
    cli.main()


if __name__ == "__main__":
    main()
